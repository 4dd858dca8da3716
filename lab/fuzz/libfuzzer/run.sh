#!/usr/bin/env bash
# Fuzzes, and prints what that came to: machine, compiler, commit, and for each target seconds, executions and coverage.
#
# lab/fuzz/libfuzzer/run.sh SECONDS [TARGET...]     each target for so long, two at a time (JOBS=N: N at a time); all targets by default
# lab/fuzz/libfuzzer/run.sh --keep [TARGET...]      afterwards: the smallest inputs that reach what was reached become lab/fuzz/corpus
#
# Needs a nightly toolchain and cargo-fuzz: docs/fuzzing.md. What is found while it runs is in corpus/ beside this, what fails in
# artifacts/; logs and programs are in the target directory. Exit status 1 where a target failed.
set -euo pipefail
cd "$(dirname "$0")"

readonly KEPT=../corpus
readonly JOBS=${JOBS:-2}
readonly TOOLCHAIN=${FUZZ_TOOLCHAIN:-nightly}
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
readonly TRIPLE=$(rustc "+$TOOLCHAIN" -vV | sed -n 's/^host: //p')
readonly LOGS=$TARGET/fuzz-logs
# Inputs above this many bytes: formats need some room, and short ones are faster.
readonly -A MAX_LEN=([connection]=2048 [recovery_full]=256 [recovery_cascade]=256 [chunks]=256)
# The most that is allocated at once, in MiB. xz may ask for a window of 512 MiB, and no more is allowed.
readonly -A MALLOC_MIB=([traces]=600)

usage() {
    sed -n '2,8s/^# \{0,1\}//p' run.sh >&2
    exit 2
}

all_targets() { sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | tail -n +2; }

program() { echo "$TARGET/$TRIPLE/release/$1"; }

build() {
    cargo "+$TOOLCHAIN" fuzz build --fuzz-dir . --target-dir "$TARGET"
}

fuzz() { # SECONDS TARGET
    local log=$LOGS/$2.log
    mkdir -p "corpus/$2" "artifacts/$2"
    nice -n 19 "$(program "$2")" "corpus/$2" "$KEPT/$2" -dict="dictionaries/$2.dict" -artifact_prefix="artifacts/$2/" \
        -max_total_time="$1" -rss_limit_mb=2048 -malloc_limit_mb="${MALLOC_MIB[$2]:-256}" -timeout=300 \
        -max_len="${MAX_LEN[$2]:-4096}" -print_final_stats=1 >"$log" 2>&1 || echo failed >>"$log"
}

figure() { # LOG NAME
    sed -n "s/^stat::$2: *//p" "$1" | tail -1
}

report() { # SECONDS TARGET...
    local seconds=$1 target log status=0
    shift
    printf 'machine   %s, %s CPUs, Linux %s\n' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(uname -r)"
    printf 'compiler  %s, libFuzzer with AddressSanitizer, debug assertions\n' "$(rustc "+$TOOLCHAIN" --version)"
    printf 'commit    %s\n' "$(git describe --always --dirty --abbrev=12)"
    printf 'seconds   %s for each target, %s at a time\n\n' "$seconds" "$JOBS"
    printf '| target | executions | per second | edges covered | features | inputs | peak MiB | outcome |\n'
    printf '| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n'
    for target; do
        log=$LOGS/$target.log
        local last outcome=clean
        last=$(grep -E '^#[0-9]+.* cov: ' "$log" | tail -1)
        if [ "$(tail -1 "$log")" = failed ]; then
            outcome="FAILED: $log" status=1
        fi
        printf '| `%s` | %s | %s | %s | %s | %s | %s | %s |\n' "$target" \
            "$(figure "$log" number_of_executed_units)" "$(figure "$log" average_exec_per_sec)" \
            "$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' <<<"$last")" "$(sed -n 's/.* ft: \([0-9]*\).*/\1/p' <<<"$last")" \
            "$(sed -n 's/.* corp: \([0-9]*\).*/\1/p' <<<"$last")" "$(figure "$log" peak_rss_mb)" "$outcome"
    done
    return $status
}

keep() { # TARGET...
    local target small
    for target; do
        small=$(mktemp -d)

        # As few as reach every edge; how often each is passed makes hundreds more.
        nice -n 19 "$(program "$target")" -set_cover_merge=1 -use_counters=0 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
            -max_len="${MAX_LEN[$target]:-4096}" "$small" "$KEPT/$target" "corpus/$target" \
            >"$LOGS/$target-keep.log" 2>&1
        # What was put there by hand, or for a fault that was found, has a name and stays.
        find "$KEPT/$target" -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
        cp -n "$small"/* "$KEPT/$target/"
        rm -r "$small"
        printf '%s: %s inputs, %s bytes\n' "$target" "$(find "$KEPT/$target" -type f | wc -l)" \
            "$(cat "$KEPT/$target"/* | wc -c)"
    done
}

main() {
    [ $# -gt 0 ] || usage
    local seconds=$1
    shift
    [[ $seconds =~ ^[0-9]+$ || $seconds = --keep ]] || usage
    local targets=("$@") target
    [ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(all_targets)
    mkdir -p "$LOGS"
    # Sockets and converted traces.
    [ ! -w /dev/shm ] || export TMPDIR=/dev/shm
    if [ "$seconds" = --keep ]; then
        keep "${targets[@]}"
        return
    fi
    [ -n "${FUZZ_BUILT:-}" ] || build
    for target in "${targets[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        fuzz "$seconds" "$target" &
    done
    wait
    report "$seconds" "${targets[@]}"
}

main "$@"
