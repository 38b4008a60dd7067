#!/usr/bin/env bash
# Builds the parts of a Kubernetes control plane that the tests run on loopback, from pinned Go modules, into a cache
# outside the tree. What is there already is left alone, so calling it again costs nothing.
#
#   cluster.sh [PART...]     parts: apiserver kubectl etcd controller-manager scheduler kwok; all of them without an argument
#
# Prints the folder of the binaries on stdout, and what it does on stderr. Needs Go only when something is missing.
set -euo pipefail

KUBERNETES=1.36.3
KWOK=0.8.0
ETCD=3.6.5

cache="${XDG_CACHE_HOME:-$HOME/.cache}/inferencecache-test"
bin="$cache/k8s-$KUBERNETES"
[ $# -gt 0 ] || set -- apiserver kubectl etcd controller-manager scheduler kwok

say() { printf 'cluster: %s\n' "$*" >&2; }

# Told to end while Go works, end both: Go itself keeps what it has built so far.
worker=""
end() { if [ -n "$worker" ]; then kill "$worker" 2>/dev/null || true; fi; say "interrupted; the next call goes on from here"; exit "$1"; }
trap 'end 130' INT
trap 'end 143' TERM HUP

# Go in FOLDER, untouched by a workspace or flags around it and by what this script may be read from.
in_folder() { # FOLDER COMMAND...
  local folder="$1" result=0
  shift
  (cd "$folder" && GOWORK=off exec "$@" </dev/null) &
  worker=$!
  wait "$worker" || result=$?
  worker=""
  return "$result"
}

# The module files are written once, and whole; each build has a wrapper module of its own, for none of these can be
# `go install`ed. Each function leaves the folder in $module.
kubernetes_module() {
  module="$cache/modules/kubernetes-$KUBERNETES"
  [ ! -f "$module/go.mod" ] || return 0
  local answer="$module/download.json" source minor="0.${KUBERNETES#1.}"
  say "fetching the module k8s.io/kubernetes v$KUBERNETES"
  mkdir -p "$module"
  if ! in_folder "$module" go mod download -json "k8s.io/kubernetes@v$KUBERNETES" >"$answer"; then
    cat "$answer" >&2
    say "the module cannot be fetched"
    return 1
  fi
  source=$(sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",$/\1/p' "$answer")
  {
    printf 'module cluster\n\ngo %s\n\ngodebug default=go%s\n\n' "$(sed -n 's/^go //p' "$source")" \
      "$(sed -n 's/^godebug default=go//p; s/^[[:space:]]*default=go//p' "$source" | head -1)"
    printf 'require k8s.io/kubernetes v%s\n\n' "$KUBERNETES"
    # Its own go.mod replaces the staging modules by folders that the published archive lacks.
    sed -n 's|^[[:space:]]*\(k8s.io/[^ ]*\) => \./staging/.*|replace \1 => \1 v'"$minor"'|p' "$source"
  } >"$module/go.mod.new"
  mv "$module/go.mod.new" "$module/go.mod"
}

plain_module() { # NAME PATH VERSION
  module="$cache/modules/$1-$3"
  [ ! -f "$module/go.mod" ] || return 0
  mkdir -p "$module"
  printf 'module cluster\n\ngo 1.26\n\nrequire %s v%s\n' "$2" "$3" >"$module/go.mod.new"
  mv "$module/go.mod.new" "$module/go.mod"
}

build() { # BINARY PACKAGE LDFLAGS VERSION
  local begin=$SECONDS try out="$bin/.$1.$$"
  for try in 1 2 3; do
    say "building $1 (minutes, once)"
    # What a broken download has fetched and built is kept, so the next try goes on from there.
    if in_folder "$module" go build -mod=mod -trimpath -o "$out" -ldflags "-s -w $3" "$2" >&2; then break; fi
    [ "$try" -lt 3 ] || { say "$1 cannot be built"; return 1; }
    sleep "$try"
  done
  # A control plane that does not say which one it is misleads everything that asks.
  { "$out" --version || "$out" version --client; } </dev/null 2>&1 | grep -F "$4" >/dev/null || { say "$1 does not call itself $4"; rm -f "$out"; return 1; }
  mv "$out" "$bin/$1"
  say "built $bin/$1 ($4) in $((SECONDS - begin))s"
}

kubernetes() { # BINARY
  local v=k8s.io/component-base/version minor="${KUBERNETES#1.}"
  kubernetes_module
  build "$1" "k8s.io/kubernetes/cmd/$1" \
    "-X $v.gitVersion=v$KUBERNETES -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} -X $v.gitTreeState=clean" "v$KUBERNETES"
}

find_or_build_etcd() {
  local found
  if found=$(type -P etcd); then
    say "etcd: using $found"
    ln -sf "$found" "$bin/etcd"
  else
    plain_module etcd go.etcd.io/etcd/server/v3 "$ETCD"
    build etcd go.etcd.io/etcd/server/v3 "" "$ETCD"
  fi
}

build_kwok() {
  plain_module kwok sigs.k8s.io/kwok "$KWOK"
  build kwok sigs.k8s.io/kwok/cmd/kwok "-X sigs.k8s.io/kwok/pkg/consts.Version=v$KWOK" "v$KWOK"
}

name_of() { # PART
  case $1 in
    apiserver | controller-manager | scheduler) printf 'kube-%s' "$1" ;;
    kubectl | etcd | kwok) printf '%s' "$1" ;;
    *) say "unknown part $1; there are: apiserver kubectl etcd controller-manager scheduler kwok"; exit 2 ;;
  esac
}

missing=""
for part in "$@"; do
  name=$(name_of "$part")
  [ -x "$bin/$name" ] || missing="$missing $part"
done
if [ -z "$missing" ]; then
  # Nobody waits for another's build of something else.
  printf '%s\n' "$bin"
  exit 0
fi

mkdir -p "$bin"
# Two callers do not build the same thing twice.
exec 9>"$cache/lock"
if command -v flock >/dev/null; then
  flock -n 9 || { say "waiting for another build"; flock 9; }
  # Halves that a killed caller left: whoever holds the lock is alone.
  rm -f "$bin"/.*.[0-9]*
fi

for part in $missing; do
  name=$(name_of "$part")
  if [ -x "$bin/$name" ]; then continue; fi
  if ! { [ "$part" = etcd ] && type -P etcd >/dev/null; } && ! command -v go >/dev/null; then
    say "$name is missing and there is no Go to build it with"
    exit 3
  fi
  case $part in
    etcd) find_or_build_etcd ;;
    kwok) build_kwok ;;
    *) kubernetes "$name" ;;
  esac
done
printf '%s\n' "$bin"
