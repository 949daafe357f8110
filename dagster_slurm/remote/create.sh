# Make a session's directory, safe against a second process that does the same.
# Parameters: base session_id session nonce secret; functions unpack_library, check_python.

# A base that others could change would let them run commands as this user.
check_base() {
    case $base in '~') base=$HOME ;; '~/'*) base=$HOME/${base#??} ;; esac
    case $base in /*) ;; *) emit base 1 "not_absolute $base"; return 1 ;; esac
    base=${base%/}
    if [ -L "$base" ]; then emit base 1 "link $base"; return 1; fi
    if [ ! -d "$base" ]; then emit base 1 "missing $base"; return 1; fi
    if [ ! -O "$base" ]; then emit base 1 "owner $base $(stat -c %U "$base")"; return 1; fi
    if [ ! -w "$base" ] || [ ! -x "$base" ]; then emit base 1 "not_writable $base"; return 1; fi
    base_mode=$(stat -c %a "$base")
    case $base_mode in *[2367]? | *[2367]) emit base 1 "writable_by_others $base $base_mode"; return 1 ;; esac
    session=$base/sessions/$session_id
}

make_directories() {
    for made in "$base/sessions" "$session" "$session/open" "$session/submissions" "$session/commits" \
        "$session/nodes" "$session/cluster" "$session/payloads"; do
        mkdir "$made" 2>/dev/null
        if [ -L "$made" ] || [ ! -d "$made" ] || [ ! -O "$made" ]; then emit base 1 "unsafe $made"; return 1; fi
        chmod 700 "$made" || { emit base 1 "not_writable $made"; return 1; }
    done
}

# The first one to create it decides; the name is complete when it appears.
make_token() {
    [ -s "$session/ray.token" ] && return
    printf %s "$secret" >"$session/ray.token.$nonce" &&
        ln "$session/ray.token.$nonce" "$session/ray.token" 2>/dev/null
    rm -f "$session/ray.token.$nonce"
    [ -s "$session/ray.token" ]
}

make_library() {
    [ -d "$session/lib" ] && return
    library=$session/lib.$nonce
    mkdir "$library" && unpack_library && mv -T "$library" "$session/lib" 2>/dev/null
    rm -rf "$library"
    [ -d "$session/lib" ]
}

check_commands() {
    for wanted in sbatch squeue scancel scontrol sacct; do
        command -v "$wanted" >/dev/null 2>&1 || printf '%s ' "$wanted"
    done
}

create() {
    check_base || return
    missing_commands=$(check_commands)
    emit commands 0 "$missing_commands"
    [ -z "$missing_commands" ] || return
    python_said=$(check_python 2>&1 </dev/null)
    python_status=$?
    emit python "$python_status" "$python_said"
    [ "$python_status" -eq 0 ] || return
    make_directories || return
    make_token || { emit base 1 "not_writable $session/ray.token"; return; }
    said=$(make_library 2>&1) || { emit base 1 "not_writable $session/lib $said"; return; }
    [ -e "$session/lease" ] || printf '' >"$session/lease" || { emit base 1 "not_writable $session/lease"; return; }
    emit base 0 "$session"
}
