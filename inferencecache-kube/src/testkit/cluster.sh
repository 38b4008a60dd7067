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

# The module files are written once; each build has a wrapper module of its own, for none of these can be `go install`ed.
kubernetes_module() {
  local dir="$cache/modules/kubernetes-$KUBERNETES" source minor="0.${KUBERNETES#1.}"
  if [ ! -f "$dir/go.mod" ]; then
    say "fetching the module k8s.io/kubernetes v$KUBERNETES"
    mkdir -p "$dir"
    source=$(cd "$dir" && GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@v$KUBERNETES" |
      sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",$/\1/p')
    {
      printf 'module cluster\n\ngo %s\n\ngodebug default=go%s\n\n' "$(sed -n 's/^go //p' "$source")" \
        "$(sed -n 's/^godebug default=go//p; s/^[[:space:]]*default=go//p' "$source" | head -1)"
      printf 'require k8s.io/kubernetes v%s\n\n' "$KUBERNETES"
      # Its own go.mod replaces the staging modules by folders that the published archive lacks.
      sed -n 's|^[[:space:]]*\(k8s.io/[^ ]*\) => \./staging/.*|replace \1 => \1 v'"$minor"'|p' "$source"
    } >"$dir/go.mod.new"
    mv "$dir/go.mod.new" "$dir/go.mod"
  fi
  printf '%s' "$dir"
}

plain_module() { # NAME PATH VERSION
  local dir="$cache/modules/$1-$3"
  if [ ! -f "$dir/go.mod" ]; then
    mkdir -p "$dir"
    printf 'module cluster\n\ngo 1.26\n\nrequire %s v%s\n' "$2" "$3" >"$dir/go.mod.new"
    mv "$dir/go.mod.new" "$dir/go.mod"
  fi
  printf '%s' "$dir"
}

build() { # BINARY MODULE-FOLDER PACKAGE LDFLAGS
  local begin=$SECONDS try
  for try in 1 2 3; do
    say "building $1 (minutes, once)"
    # What a broken download has fetched and built is kept, so the next try goes on from there.
    if (cd "$2" && go build -mod=mod -trimpath -o "$bin/.$1.$$" -ldflags "-s -w $4" "$3") >&2; then break; fi
    [ "$try" -lt 3 ] || return 1
    sleep "$try"
  done
  mv "$bin/.$1.$$" "$bin/$1"
  say "built $bin/$1 in $((SECONDS - begin))s"
}

kubernetes() { # BINARY
  local v=k8s.io/component-base/version minor="${KUBERNETES#1.}"
  build "$1" "$(kubernetes_module)" "k8s.io/kubernetes/cmd/$1" \
    "-X $v.gitVersion=v$KUBERNETES -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} -X $v.gitTreeState=clean"
}

find_or_build_etcd() {
  local found
  if found=$(type -P etcd); then
    say "etcd: using $found"
    ln -sf "$found" "$bin/etcd"
  else
    build etcd "$(plain_module etcd go.etcd.io/etcd/server/v3 "$ETCD")" go.etcd.io/etcd/server/v3 ""
  fi
}

mkdir -p "$bin"
# Two callers do not build the same thing twice.
exec 9>"$cache/lock"
if command -v flock >/dev/null; then flock -n 9 || { say "waiting for another build"; flock 9; }; fi

for part in "$@"; do
  case $part in
    apiserver | controller-manager | scheduler) name=kube-$part ;;
    kubectl | etcd | kwok) name=$part ;;
    *) say "unknown part $part"; exit 2 ;;
  esac
  if [ -x "$bin/$name" ]; then continue; fi
  if ! { [ "$part" = etcd ] && type -P etcd >/dev/null; } && ! command -v go >/dev/null; then
    say "$name is missing and there is no Go to build it with"
    exit 3
  fi
  case $part in
    etcd) find_or_build_etcd ;;
    kwok) build kwok "$(plain_module kwok sigs.k8s.io/kwok "$KWOK")" sigs.k8s.io/kwok/cmd/kwok "-X sigs.k8s.io/kwok/pkg/consts.Version=v$KWOK" ;;
    *) kubernetes "$name" ;;
  esac
done
printf '%s\n' "$bin"
