# One look at a session. Order of reads: clock, ledger, open submissions, listing, then everything else.
# Only an id that was known before the listing can be absent from it; any other order allows a duplicate.
# Parameters: session; the function list_jobs runs the listing.

# Files of one submission, added to $traces: token and fate, then what sbatch answered. The claim only moves from ready
# to started or revoked, so looking in this order never misses it; sent is never removed.
add_trace() {
    trace_dir=$session/submissions/$1
    trace_fate=missing
    if [ -e "$trace_dir/ready" ]; then
        trace_fate=ready
        [ -e "$trace_dir/sent" ] && trace_fate=sent
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

# Paths and contents of files that hold one line each, in one process; a file that is gone meanwhile is left out.
show_files() {
    [ -e "$1" ] && grep -H '' "$@" 2>/dev/null
}

list_facts() {
    printf %s "$seen_at"
    facts_end
    if [ -e "$session/closing" ]; then printf yes; else printf no; fi
    facts_end
    list_drains
    facts_end
    # The lease tells the agents that somebody still cares; its new time is also the filesystem's clock.
    if [ -e "$session/lease" ]; then touch "$session/lease"; fi
    stat -c '%Y %n' "$session/lease" "$session"/nodes/*.json "$session"/cluster/*.json \
        "$session"/payloads/*/driver.json 2>/dev/null
    facts_end
    show_files "$session"/nodes/*.json
    show_files "$session"/cluster/*.json
    show_files "$session"/payloads/*/driver.json
    facts_end
    show_files "$session"/payloads/*/work.json
}

facts_end() { printf '\034'; }

observe() {
    seen_at=$(date +%s)
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
    section facts list_facts
}
