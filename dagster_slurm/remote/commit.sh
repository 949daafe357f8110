# One commit: take the lock, check that nothing changed, put the new ledger in place, perform the effects.
# Parameters: session cluster nonce expected new_sum observed_at job_name needs_controller even_if_closing
#   lock_wait lock_stale effect_limit age_limit at_once; functions prepare_submissions, mark_open, archive, effects, observe.

# Files are made with printf: a failed redirection of `:` would end the whole shell.

# Tests define a function of this name before the script to stop or kill it at one of its steps.
command -v checkpoint >/dev/null 2>&1 || checkpoint() { :; }

newline='
'
part_end=$(printf '\036')
report=
note() { report="$report$1$newline"; }

# Host, boot, pid namespace, pid and start time: all of them the same means the same process.
name_owner() {
    owner_host=
    [ -r /proc/sys/kernel/hostname ] && read -r owner_host </proc/sys/kernel/hostname
    [ -n "$owner_host" ] || owner_host=$(uname -n)
    owner_boot=unknown
    [ -r /proc/sys/kernel/random/boot_id ] && read -r owner_boot </proc/sys/kernel/random/boot_id
    owner_space=$(readlink /proc/self/ns/pid)
    owner_space=${owner_space#pid:}
    find_start $$
    owner=owner.$nonce,$owner_host,$owner_boot,$owner_space,$$,$start
}

# When a process started; empty when there is none.
find_start() {
    start=
    [ -r "/proc/$1/stat" ] || return 1
    read -r stat_line <"/proc/$1/stat" || return 1
    # The command's name may hold blanks; what follows its closing bracket does not.
    stat_line=${stat_line##*) }
    set -- $stat_line
    start=${20}
}

# A lock is abandoned when its process is gone, or when it is older than anything its owner may still begin.
abandoned() {
    lock_fields=${1#owner.}
    lock_age=
    IFS=,
    set -- $lock_fields
    unset IFS
    if [ "$2" = "$owner_host" ] && [ "$3" = "$owner_boot" ] && [ "$4" = "$owner_space" ]; then
        find_start "$5"
        [ "$start" = "$6" ] || return 0
    fi
    printf '' >"probe.$nonce"
    set -- $(stat -c %Y "probe.$nonce" "lock/owner.$lock_fields" 2>/dev/null)
    [ -n "${2-}" ] || return 1
    lock_age=$(($1 - $2))
    [ "$lock_age" -ge "$lock_stale" ]
}

# Prepared complete and renamed into place: the lock never exists without its owner. The reply to a rename can
# be lost on a network filesystem, so look for one's own file. An empty directory is the leftover of a release.
take_lock() {
    said=$({ mkdir "lock.$nonce" && printf '' >"lock.$nonce/$owner"; } 2>&1) || return 2
    lock_until=
    while :; do
        mv -T "lock.$nonce" lock 2>/dev/null
        [ -e "lock/$owner" ] && return 0
        holder=
        for lock_file in lock/owner.*; do
            [ -e "$lock_file" ] && holder=${lock_file#lock/}
        done
        if [ -n "$holder" ] && abandoned "$holder"; then
            take_over "$holder"
            [ -e "lock/$owner" ] && return 0
        fi
        lock_now=$(date +%s)
        lock_until=${lock_until:-$((lock_now + lock_wait))}
        [ "$lock_now" -lt "$lock_until" ] || return 1
        sleep 0.05
    done
}

# Fence first: without its prepared ledger the old owner can put nothing in place when it wakes up.
take_over() {
    former=${1#owner.}
    rm -f "prepared.${former%%,*}"
    checkpoint takeover-fenced
    # Fresh before it is ours, so that nobody takes it over from us at once.
    touch -c "lock/$1"
    mv -T "lock/$1" "lock/$owner" 2>/dev/null
}

release_lock() {
    rm -f "probe.$nonce" "lock/$owner" "commits/$nonce".answer.* "commits/$nonce".error.*
    rmdir lock 2>/dev/null
    if [ -e "lock.$nonce" ]; then rm -rf "lock.$nonce"; fi
}

refuse() {
    emit outcome 0 "refused $1
$2"
    rm -f "prepared.$nonce"
    release_lock
    drop_submissions
    observe
}

ledger_sum() {
    if [ -e allocation.json ]; then
        set -- $(sha256sum allocation.json)
        printf '%s' "$1"
    else
        printf absent
    fi
}

# Seconds that only go forward, without starting a process; date where there is no /proc.
read_uptime() {
    if [ -r /proc/uptime ] && read -r up _ </proc/uptime; then up=${up%%.*}; else up=$(date +%s); fi
}

# Every effect looks at its own lock and at the time first: nothing begins after another may have taken over.
may_act() {
    read_uptime
    clock=$((locked_at + up - locked_up))
    [ -e "lock/$owner" ] && [ $((up - locked_up)) -lt "$effect_limit" ]
}

skip() { note "skipped $1"; }

# The files of one submission: its batch script, and the claim that the job renames when it starts.
prepare() {
    printf '#!/bin/sh\ntoken=%s\n%s' "$1" "$2" >"submissions/$1/batch.sh" && printf '' >"submissions/$1/ready"
}

# Two files for all that sbatch says, or two for each submission on its way: on a shared filesystem a new file costs
# more than what is written into it. They are made first: a disk without room for them stops the commit here.
prepare_answers() {
    slot=0
    while [ "$slot" -lt "$at_once" ]; do
        printf '' >"commits/$nonce.answer.$slot" && printf '' >"commits/$nonce.error.$slot" || return
        slot=$((slot + 1))
    done
}

# Begins a submission, once there is room for it: a few at a time are on their way when many are asked for.
effect_submit() {
    if [ "$on_their_way" -ge "$at_once" ]; then finish_oldest; fi
    dir=submissions/$1
    if [ "$stop" = all ] || [ "$stop" = "$2" ] || ! may_act || { [ -e closing ] && [ "$even_if_closing" = no ]; }; then
        revoke "$1" ready
        append_trace "$1" revoked ''
        skip "$1"
        return
    fi
    checkpoint before-sent
    # Whoever took over may have revoked it: then this fails and nothing is submitted.
    make_first "$dir/sent" || { append_trace "$1" revoked ''; skip "$1"; return; }
    checkpoint before-sbatch
    token=$1
    shape=$2
    shift 2
    slot=$(((slot + 1) % at_once))
    "$@" >"commits/$nonce.answer.$slot" 2>"commits/$nonce.error.$slot" </dev/null &
    begun="$begun $! $token $shape $clock $slot"
    on_their_way=$((on_their_way + 1))
}

# Takes in the answer of the submission that was begun first.
finish_oldest() {
    set -- $begun
    wait "$1"
    status=$?
    token=$2
    shape=$3
    sent_at=$4
    said_in=$5
    dir=submissions/$2
    shift 5
    begun=$*
    on_their_way=$((on_their_way - 1))
    checkpoint after-sbatch
    read_whole "commits/$nonce.answer.$said_in"
    answer=$whole
    read_whole "commits/$nonce.error.$said_in"
    error=$whole
    # Whoever reads it sees by its last line that it is whole.
    result="$status $sent_at$newline$answer$newline$part_end$newline$error$newline$part_end"
    printf '%s' "$result" >"$dir/result" || stop=all
    append_trace "$token" sent "$result"
    checkpoint after-result
    [ "$status" -eq 0 ] && [ -n "$answer" ] && return
    # After a failure that may still have made a job nothing more is begun; a refusal stops its own shape.
    stop=$shape
    if is_communication_failure "$status" "$error"; then stop=all; fi
}

# A short file without its last newlines, read without starting a process.
read_whole() {
    whole=
    [ -s "$1" ] || return
    while IFS= read -r line || [ -n "$line" ]; do
        whole=$whole$line$newline
    done <"$1"
    while [ "$whole" != "${whole%"$newline"}" ]; do whole=${whole%"$newline"}; done
}

effect_cancel() {
    cancel_state=$1
    shift
    may_act || { skip cancel; return; }
    checkpoint before-cancel
    if [ "$cancel_state" = pending ]; then
        cancel_said=$(timeout -k 2 12 scancel ${cluster:+--clusters="$cluster"} --state=PENDING --name="$job_name" --user="$user_name" "$@" 2>&1 </dev/null)
    else
        cancel_said=$(timeout -k 2 12 scancel ${cluster:+--clusters="$cluster"} --name="$job_name" --user="$user_name" "$@" 2>&1 </dev/null)
    fi
    note "cancelled $? $cancel_said"
    checkpoint after-cancel
}

effect_drain() {
    may_act || { skip drain; return; }
    checkpoint before-drain
    printf '%s' "$2" >"submissions/$1/drain.new" && mv "submissions/$1/drain.new" "submissions/$1/drain" || skip drain
}

# Of all who make this file exactly one succeeds, without starting a process.
make_first() {
    set -C
    { printf '' >"$1"; } 2>/dev/null
    made=$?
    set +C
    return "$made"
}

# What was never sent is barred from being sent first; then the claim is taken away. Whoever is stopped in between has
# left a submission that looks sent, and is settled as one.
revoke() {
    if [ "$2" = ready ]; then
        make_first "submissions/$1/sent" || return 1
        checkpoint revoke-barred
    fi
    mv "submissions/$1/ready" "submissions/$1/revoked" 2>/dev/null
}

effect_revoke() {
    may_act || { skip revoke; return; }
    if revoke "$1" "$2"; then note "revoked $1"; else note "kept $1"; fi
    checkpoint after-revoke
}

effect_forget() {
    (cd open && rm -f "$@")
}

effect_close() {
    printf '' >closing || skip closing
    checkpoint closing-marked
    controller_answers || { skip cancel; return; }
    cancel_said=$(timeout -k 2 12 scancel ${cluster:+--clusters="$cluster"} --name="$job_name" --user="$user_name" 2>&1 </dev/null)
    note "cancelled $? $cancel_said"
}

# Costs a few milliseconds, or two seconds when the controller is dead or hangs; a command costs ten then.
controller_answers() {
    pinged=$(timeout -k 1 2 scontrol ${cluster:+--clusters="$cluster"} ping 2>&1 </dev/null)
    case $pinged in *' is UP'*) return 0 ;; esac
    return 1
}

put_in_place() {
    [ -e "lock/$owner" ] || return 1
    # A network filesystem can lose the reply to a rename that succeeded.
    mv -T "prepared.$nonce" allocation.json 2>/dev/null || [ "$(ledger_sum)" = "$new_sum" ]
}

commit() {
    trap '' HUP PIPE
    cd "$session" || { emit outcome 0 "refused gone
no such session directory"; return; }
    user_name=$(id -un)
    stop=none
    begun=
    on_their_way=0
    slot=0
    name_owner
    if [ "$needs_controller" = yes ] && ! controller_answers; then refuse scheduler_silent "$pinged"; return; fi
    # Written and synced under its own name before the lock is taken, never created a second time.
    said=$(printf '%s' "$new_ledger" | dd of="prepared.$nonce" conv=excl,fsync 2>&1)
    set -- $(sha256sum "prepared.$nonce" 2>/dev/null)
    if [ "${1-}" != "$new_sum" ]; then refuse unwritable "$session/allocation.json: $said"; return; fi
    said=$(prepare_submissions 2>&1) || { refuse unwritable "$session/submissions: $said"; return; }
    checkpoint prepared
    take_lock
    taken=$?
    if [ "$taken" -eq 2 ]; then refuse unwritable "$session/lock.$nonce: $said"; return; fi
    if [ "$taken" -ne 0 ]; then refuse locked "$session/lock ${holder:-unknown} ${lock_age:-unknown}"; return; fi
    locked_at=$(date +%s)
    read_uptime
    locked_up=$up
    traces=
    checkpoint locked
    if [ -e "commits/$nonce" ]; then refuse changed 'this commit was made before'; return; fi
    if [ "$(ledger_sum)" != "$expected" ]; then refuse changed 'another commit came first'; return; fi
    if [ "$locked_at" -lt "$observed_at" ] || [ $((locked_at - observed_at)) -gt "$age_limit" ]; then
        refuse stale "observed at $observed_at, now $locked_at"
        return
    fi
    if [ -e closing ] && [ "$even_if_closing" = no ]; then refuse closing 'the session is ending'; return; fi
    checkpoint checked
    said=$({ mark_open && archive; } 2>&1) || { refuse unwritable "$session/open: $said"; return; }
    checkpoint before-ledger
    put_in_place || { refuse changed 'the lock was taken over'; return; }
    checkpoint ledger-in-place
    effects
    while [ "$on_their_way" -gt 0 ]; do finish_oldest; done
    checkpoint effects-done
    printf '%s' "$report" >"commits/$nonce.new" && mv "commits/$nonce.new" "commits/$nonce"
    if [ "$needs_controller" = yes ]; then find commits -type f -mmin +1440 -exec rm -f {} +; fi
    release_lock
    emit outcome 0 "committed
$report"
    emit traces 0 "$traces"
}
