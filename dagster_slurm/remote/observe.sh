# One look at a session. Order of reads: clock, ledger, open submissions, listing, then everything else.
# Only an id that was known before the listing can be absent from it; any other order allows a duplicate.
# Parameters: session; the function list_jobs runs the listing.

# Files of one submission, added to $traces: token and fate, then what sbatch answered. A fate file only moves
# forward, so looking in the order of its moves never misses it.
add_trace() {
    trace_dir=$session/submissions/$1
    trace_fate=missing
    if [ -e "$trace_dir/ready" ]; then trace_fate=ready
    elif [ -e "$trace_dir/sent" ]; then trace_fate=sent
    else
        for trace_file in "$trace_dir"/started.*; do
            [ -e "$trace_file" ] && trace_fate="started ${trace_file##*/started.}"
        done
        [ "$trace_fate" = missing ] && [ -e "$trace_dir/revoked" ] && trace_fate=revoked
    fi
    trace_result=
    [ -s "$trace_dir/result" ] && trace_result=$(cat "$trace_dir/result")
    append_trace "$1" "$trace_fate" "$trace_result"
}

trace_end=$(printf '\035')
append_trace() {
    traces="$traces$1 $2
$3$trace_end"
}

list_drains() {
    for drain_file in "$session"/submissions/*/drain; do
        [ -e "$drain_file" ] || continue
        drain_dir=${drain_file%/drain}
        printf '%s\n' "${drain_dir##*/}"
    done
}

list_work() {
    for work_file in "$session"/payloads/*/work.json; do
        [ -e "$work_file" ] || continue
        work_dir=${work_file%/work.json}
        printf '%s\t' "${work_dir##*/}"
        cat "$work_file"
        printf '\n'
    done
}

list_reports() {
    set -- "$session"/nodes/*.json "$session"/cluster/*.json
    for report_file do
        [ -e "$report_file" ] || continue
        printf '%s\t' "$report_file"
        stat -c %Y "$report_file"
        cat "$report_file"
        printf '\n'
    done
}

observe() {
    section clock date +%s
    if [ -e "$session/allocation.json" ]; then
        section ledger cat "$session/allocation.json"
    elif [ -d "$session" ]; then
        emit ledger 4 'no ledger yet'
    else
        emit ledger 3 'no such session directory'
    fi
    traces=
    for open_marker in "$session"/open/*; do
        [ -e "$open_marker" ] && add_trace "${open_marker##*/}"
    done
    emit traces 0 "$traces"
    section listing list_jobs
    # The lease tells the agents that somebody still cares; its new time is also the filesystem's clock.
    if [ -e "$session/lease" ]; then
        touch "$session/lease"
        section lease stat -c %Y "$session/lease"
    fi
    if [ -e "$session/closing" ]; then emit closing 0 yes; else emit closing 0 no; fi
    section drains list_drains
    section reports list_reports
    section work list_work
}
