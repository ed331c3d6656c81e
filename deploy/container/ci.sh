#!/usr/bin/env bash
# The image, built and run for real, on a Debian machine as root and without a Docker engine: a base by debootstrap, the
# build by buildah, the containers by Podman and runc. Nothing is taken from an earlier call, and nothing is left.
#
#     deploy/container/ci.sh            # TORCH, TORCH_OPTIONS: as for `make venv`; LOG: a file that stays
#
# The last thing printed is a table of what was measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

START_MOST_MS=15000   # from `podman run` to the first scraped sample
STOP_MOST_MS=5000     # from SIGTERM to the end of the container
REFUSE_MOST_MS=30000  # a start that cannot be
OWN_MOST_MB=250       # layers on top of the base, without torch and Triton
RUN=ci CARD=0000:33:00.0 STRANGE_GID=20109

work="$(mktemp --directory --tmpdir="${TMPDIR:-/var/tmp}" soak-container.XXXXXX)"
log="${LOG:-$work/log}"
: > "$log"

# --- tools

export CONTAINERS_CONF="$work/containers.conf"
store=(--root "$work/storage" --runroot "$work/run")
podman=(podman "${store[@]}" --tmpdir "$work/tmp" --volumepath "$work/volumes")
pod() { "${podman[@]}" "$@" 2>> "$log"; }
logs() { "${podman[@]}" logs "$1" 2>&1; }
now_ms() { date +%s%3N; }
say() { echo "$*" | tee -a "$log"; }
table=()
row() { table+=("$(printf '%-66s %s' "$1" "$2")"); say "$1: $2"; }

fail() {
  say "FAILED: $*"
  for name in $(pod ps --all --format '{{.Names}}'); do echo "--- $name"; logs "$name" | tail -n 30; done
  echo "--- $log"; tail -n 30 "$log"
  exit 1
}

tidy() {
  buildah "${store[@]}" rm --all > /dev/null 2>&1 || true
  pod rm --force --all --time 1 > /dev/null || true
  umount "$work/base" "$work/storage/overlay" 2> /dev/null || true
  rm -rf "$work"
}
trap tidy EXIT

install_tools() {
  local missing=() tool
  for tool in podman buildah runc debootstrap; do command -v "$tool" > /dev/null || missing+=("$tool"); done
  ((${#missing[@]})) || return 0
  say "installing: ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null
}

configure() {  # runc and limits that are allowed here, for buildah and Podman alike
  cat > "$CONTAINERS_CONF" << END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
END
}

# --- build

make_base() {  # in memory where that is allowed: dpkg waits for the disk after each file
  mkdir "$work/base"
  mount -t tmpfs -o size=1g tmpfs "$work/base" 2>> "$log" || true
  debootstrap --variant=minbase --include=python3,python3-pip bookworm "$work/base" >> "$log"
  tar --directory "$work/base" --exclude './var/cache/apt/archives/*.deb' --exclude './var/lib/apt/lists/*' --create . \
    | pod import - localhost/soak-base:bookworm > /dev/null
  umount "$work/base" 2> /dev/null || rm -rf "$work/base"
}

pip_mounts() {  # into `mounts`: pip's configuration of this machine, for the build alone, and the files that it names
  local key value path n=0
  echo "[global]" > "$work/pip.conf"
  while IFS='=' read -r key value; do
    path="${value#file://}"
    if [[ -e $path ]]; then
      n=$((n + 1))
      mounts+=(--volume "$path:/run/pip/$n:ro")
      value="/run/pip/$n"
    fi
    echo "$key = $value" >> "$work/pip.conf"
  done < <(python3 -m pip config list | sed -nE "s/^(global|:env:)\.(cert|find-links|index-url)='(.*)'$/\2=\3/p" \
    | sort --unique --field-separator='=' --key=1,1)
  mounts+=(--volume "$work/pip.conf:/etc/pip.conf:ro")
}

build() {
  local mounts=()
  pip_mounts
  buildah "${store[@]}" bud --isolation chroot --network host --layers --format docker "${mounts[@]}" \
    --build-arg BASE_IMAGE=localhost/soak-base:bookworm --build-arg TRITON= \
    --build-arg TORCH="${TORCH:-torch==2.13.0}" --build-arg TORCH_OPTIONS="${TORCH_OPTIONS:-}" \
    --tag gpu-soak . >> "$log" 2>&1 || fail "the build"
}

weigh() {  # the layers by what made them, in bytes
  local base torch own
  read -r base torch own < <(pod history --no-trunc --format json gpu-soak | python3 -c '
import json, sys
sizes = {"base": 0, "torch": 0, "own": 0}
for layer in json.load(sys.stdin):
    by = layer["CreatedBy"]
    sizes["base" if "ADD file:" in by else "torch" if "\"$TORCH\"" in by else "own"] += layer["size"]
print(*sizes.values())')
  row "base, debootstrap with Python and pip" "$((base / 1000000)) MB"
  row "torch for the CPU" "$((torch / 1000000)) MB"
  row "own layers (most $OWN_MOST_MB MB)" "$((own / 1000000)) MB"
  row "the whole image" "$(((base + torch + own) / 1000000)) MB"
  ((base > 0 && torch > 0)) || fail "the layers of base and torch were not found"
  ((own <= OWN_MOST_MB * 1000000)) || fail "the own layers have $own bytes"
}

# --- run

# As strict as it gets: no file can be written but on the volume, no capability, a network of its own.
strict=(--read-only --read-only-tmpfs=false --cap-drop ALL --security-opt no-new-privileges --network none)
minute=(
  --device cpu --duration 1m --warmup 5s --rotate-every 20s --check-every 30s --sample-every 10s --seq-len 64:512
)

get() {  # CONTAINER PATH: what its server answers, asked from inside its network and by nothing of its own
  local pid
  pid="$(pod inspect --format '{{.State.Pid}}' "$1")"
  nsenter --target "$pid" --net bash -c '
    exec 3<>/dev/tcp/127.0.0.1/9868 && printf "GET %s HTTP/1.0\r\n\r\n" "$1" >&3 && cat <&3
  ' _ "$2" 2> /dev/null || true
}

await() {  # CONTAINER PATTERN SECONDS: until a line of its metrics matches
  local until=$(($(now_ms) + $3 * 1000))
  until get "$1" /metrics | grep --quiet --extended-regexp "$2"; do
    (($(now_ms) < until)) || fail "no metric $2 from $1 in $3 s"
    [[ "$(pod inspect --format '{{.State.Running}}' "$1")" == true ]] || fail "$1 ended before its metric $2"
    sleep 0.1
  done
}

starts=()
await_start() {  # CONTAINER SINCE WHAT
  await "$1" '^soak_gpu_utilization_ratio\{' 60
  local took=$(($(now_ms) - $2))
  starts+=("$took")
  row "$3 to the first scraped sample" "$took ms"
}

stop() {  # CONTAINER CODE WHAT: SIGTERM, and what the container then exits with
  local since code
  since="$(now_ms)"
  pod kill --signal TERM "$1" > /dev/null
  code="$(timeout 60 "${podman[@]}" wait "$1" 2>> "$log")" || fail "$1 outlives SIGTERM"
  local took=$(($(now_ms) - since))
  row "$3 (most $STOP_MOST_MS ms)" "exit $code in $took ms"
  ((code == $2)) || fail "$1 exits with $code and not with $2"
  ((took <= STOP_MOST_MS)) || fail "$1 takes $took ms to end"
}

refuse() {  # WHAT CODE PATTERN PODMAN'S-OPTIONS... -- SOAK'S: a start that cannot be, told in one line
  local what="$1" code="$2" pattern="$3" options=() status=0 since said
  shift 3
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  since="$(now_ms)"
  said="$("${podman[@]}" run --rm --no-healthcheck "${strict[@]}" "${options[@]}" gpu-soak "$@" 2>&1)" || status=$?
  local took=$(($(now_ms) - since))
  echo "$said" >> "$log"
  row "$what" "exit $status in $took ms"
  say "    $(grep '^soak: ' <<< "$said" || true)"
  ((status == code)) || fail "$what: exit $status and not $code: $said"
  grep --quiet -- "^soak: .*$pattern" <<< "$said" || fail "$what: nothing of '$pattern' in: $said"
  ((took <= REFUSE_MOST_MS)) || fail "$what: $took ms until it is told"
}

# --- what is shown

show_interrupted_and_resumed() {
  local since
  since="$(now_ms)"
  pod run --detach --name first --health-interval disable "${strict[@]}" --volume data:/data \
    gpu-soak run "${minute[@]}" --run-id "$RUN" > /dev/null
  await_start first "$since" "podman run"
  pod exec first python3 -c 'import os; os.kill(1, 0); assert os.getuid() == 10001' || fail "it runs as another user"
  pod healthcheck run first > /dev/null || fail "the image's HEALTHCHECK says that it is not well"
  refuse "a second container on the same run" 4 "Run $RUN is held by .*namespace" --volume data:/data \
    -- run "${minute[@]}" --run-id "$RUN"
  stop first 3 "SIGTERM while it soaks"

  since="$(now_ms)"
  pod run --detach --name second --no-healthcheck "${strict[@]}" --volume data:/data \
    gpu-soak run "${minute[@]}" --run-id "$RUN" > /dev/null
  await_start second "$since" "podman run on the same volume"
  [[ "$(logs second)" == *"run $RUN, attempt 2"* ]] || fail "the run was not resumed"
  await second '^soak_verdict\{.*verdict="pass".*\} 1' 120
  await second '^soak_run_state\{.*="completed".*\} 1' 10
  row "the verdict is scraped after the end" "PASS, completed"
  stop second 0 "SIGTERM while it lingers"
}

show_report() {
  local said status=0
  said="$(pod run --rm --no-healthcheck "${strict[@]}" --volume data:/data:ro gpu-soak report --run-id "$RUN")" || status=$?
  [[ $status == 0 && $said == *PASS* ]] || fail "soak report exits with $status: $said"
  row "soak report from a third container, volume read-only" "exit $status, PASS"
  said="$(pod run --rm --no-healthcheck "${strict[@]}" --volume data:/data \
    gpu-soak run "${minute[@]}" --run-id "$RUN")" || status=$?
  [[ $status == 0 && $said == *PASS* ]] || fail "a finished run started again exits with $status: $said"
  row "the finished run started again" "exit $status, PASS, nothing is run"
}

show_killed() {  # and, at the same time, no HOME and a user whom the image does not know
  local since
  since="$(now_ms)"
  mkdir "$work/kill"
  chown 4711 "$work/kill"
  pod run --detach --name killed --no-healthcheck "${strict[@]}" --unsetenv HOME --user 4711:4711 \
    --volume "$work/kill:/data" gpu-soak run "${minute[@]}" --run-id killed > /dev/null
  await_start killed "$since" "podman run without HOME, as uid 4711"
  pod kill --signal KILL killed > /dev/null
  pod wait killed > /dev/null
  since="$(now_ms)"
  pod start killed > /dev/null
  await_start killed "$since" "podman start after SIGKILL"
  [[ "$(logs killed)" == *"run killed, attempt 2"* ]] || fail "the killed run was not resumed"
  stop killed 3 "SIGTERM after that"
}

show_bad_input() {
  local sys="$work/mi50" node="$work/kfd"
  mkdir "$work/closed"
  refuse "a volume of another user" 4 "/data is not writable for uid 10001" --volume "$work/closed:/data" -- run --device cpu
  refuse "no device passed" 4 '--device /dev/kfd --device /dev/dri' --volume data:/data -- run
  cp -R tests/captures/amd__instinct-mi50-32gb__by-hand/root/sys "$sys"
  mkdir -p "$sys/fs/cgroup"  # where the runtime mounts it
  refuse "an MI50 in /sys, no device passed" 4 "$CARD: /dev/kfd was not passed .* --device /dev/dri" \
    --volume data:/data --volume "$sys:/sys:ro" -- run
  mknod "$node" c 1 3
  chgrp "$STRANGE_GID" "$node"
  chmod 660 "$node"
  refuse "an MI50, /dev/kfd of another group" 4 "/dev/kfd is closed to uid 10001: .*--group-add $STRANGE_GID" \
    --volume data:/data --volume "$sys:/sys:ro" --device "$node:/dev/kfd" -- run
  refuse "the same with --group-add, on an image for the CPU" 4 "$CARD: the load does not start" \
    --volume data:/data --volume "$sys:/sys:ro" --device "$node:/dev/kfd" --group-add "$STRANGE_GID" -- run
  refuse "a listen address that is none" 2 "SOAK_LISTEN: 'everywhere'" \
    --volume data:/data --env SOAK_LISTEN=everywhere -- run --device cpu
}

began="$(now_ms)"
install_tools
configure
since="$(now_ms)"; make_base; row "the base by debootstrap" "$((($(now_ms) - since) / 1000)) s"
since="$(now_ms)"; build; row "the build" "$((($(now_ms) - since) / 1000)) s"
weigh
show_interrupted_and_resumed
show_report
show_killed
show_bad_input
best="$(printf '%s\n' "${starts[@]}" | sort -n | head -n 1)"  # the machine's other work only adds to it
row "the quickest start (most $START_MOST_MS ms)" "$best ms"
((best <= START_MOST_MS)) || fail "every start takes longer than $START_MOST_MS ms"
row "all of it" "$((($(now_ms) - began) / 1000)) s"

echo
printf '%s\n' "${table[@]}"
