# Definitions only: reading this file runs nothing. Plain POSIX sh; works with dash, bash and busybox.
# Every name here starts with frame_ or is one of: section, emit, scrub_slurm_environment, settle_environment.
# Full-line comments are not sent.

# The settings that every script can rely on: replies in English, new files for the owner alone.
# Also undoes shell options that the lines of remote_setup may have left behind.
settle_environment() {
    set +aefuvxC
    unset IFS
    umask 077
    LC_ALL=C
    export LC_ALL
}

# Unsets every variable that silently changes what a Slurm command does. SLURM_CONF says which cluster, and stays.
# A value that has several lines can only add names that are unset anyway, so the listing need not be parsed exactly.
scrub_slurm_environment() {
    frame_list=$(export -p)
    IFS='
'
    set -f
    for frame_line in $frame_list; do
        case $frame_line in
            *SQUEUE_*=* | *SCANCEL_*=* | *SACCT_*=* | *SBATCH_*=* | *SALLOC_*=* | *SLURM_*=* | *PMI*=*) ;;
            *) continue ;;
        esac
        frame_line=${frame_line%%=*}
        frame_line=${frame_line##* }
        case $frame_line in
            SLURM_CONF | *[!A-Za-z0-9_]*) ;;
            SQUEUE_* | SCANCEL_* | SACCT_* | SBATCH_* | SALLOC_* | SLURM_* | PMI*) unset "$frame_line" ;;
        esac
    done
    set +f
    unset IFS frame_list frame_line
}

# emit NAME STATUS BODY: one frame. The checksum covers number, name, status and body.
# NAME has no blanks; STATUS is a whole number. Only in the main shell: a subshell would lose the frame number.
emit() {
    frame_number=$((frame_number + 1))
    frame_head="$frame_nonce $frame_number $1 $2"
    printf '\n<%s>\n%s\n<%s ' "$frame_head" "$3" "$frame_nonce"
    printf '%s\n%s' "$frame_head" "$3" | cksum
}

# section NAME CMD ARGS...: runs CMD (a command or a function) and emits what it printed and its exit status.
# The dot keeps trailing newlines, which $() would drop. NUL bytes do not survive a shell variable.
section() {
    frame_name=$1
    shift
    frame_body=$("$@" </dev/null 2>&1; frame_status=$?; printf .; exit "$frame_status")
    emit "$frame_name" "$?" "${frame_body%.}"
}
