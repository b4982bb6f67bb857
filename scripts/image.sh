#!/usr/bin/env bash
# Builds and tests the images of Dockerfile.gpu: `make image`, `make image-gpu`.
#
#   scripts/image.sh build cpu|gpu    build localhost/steadyfit:cpu or :gpu, and print its size
#   scripts/image.sh try cpu|gpu      check its files, and run doctor and fit in it on the CPU
#   scripts/image.sh bases            make base images without a registry, with
#                                     debootstrap (still needs Debian's packages)
#
# Variables:
#   ENGINE                     docker or buildah; default docker if its engine answers
#   IMAGE                      name of the image; default localhost/steadyfit
#   BASE, GO_BASE, PIP_BASE    base images, see Dockerfile.gpu; after `bases`
#                              BASE=localhost/steadyfit-base:bookworm and, for the other
#                              two, localhost/steadyfit-tools:bookworm
#   DEBIAN_MIRROR              the source of packages for debootstrap
# buildah reads BUILDAH_ISOLATION and STORAGE_DRIVER itself. The former is chroot here
# unless it is set: that needs no namespaces, and the steps only run trusted code. If the
# kernel has no overlay file system, set STORAGE_DRIVER=vfs, which copies each layer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

image=${IMAGE:-localhost/steadyfit}
suite=bookworm
base=localhost/steadyfit-base:$suite
tools=localhost/steadyfit-tools:$suite
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

say() { printf 'image: %s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || die "$tool is missing (Debian: apt-get install $tool)"
    done
}

engine() {
    if [ -n "${ENGINE:-}" ]; then
        case "$ENGINE" in
        docker | buildah) need "$ENGINE" ;;
        *) die "ENGINE=$ENGINE: expected docker or buildah" ;;
        esac
        printf '%s' "$ENGINE"
    elif command -v docker >/dev/null && docker info >/dev/null 2>&1; then
        printf docker
    elif command -v buildah >/dev/null; then
        printf buildah
    else
        die "no Docker engine answers, and buildah is missing (Debian: apt-get install buildah)"
    fi
}

variant() {
    case "${1:-}" in
    cpu | gpu) ;;
    *) die "expected cpu or gpu, found '${1:-}'" ;;
    esac
}

build() {
    local with arguments name
    variant "$1"
    with=$(engine)
    arguments=(--file Dockerfile.gpu --tag "$image:$1" --build-arg "VARIANT=$1")
    for name in BASE GO_BASE PIP_BASE; do
        [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
    done
    if git rev-parse --git-dir >/dev/null 2>&1; then
        arguments+=(--build-arg "VERSION=$(git describe --tags --always --dirty --abbrev=12)" --build-arg "REVISION=$(git rev-parse HEAD)")
    fi
    say "building $image:$1 with $with"
    if [ "$with" = docker ]; then
        docker build "${arguments[@]}" .
    else
        # OCI's own format has no HEALTHCHECK.
        buildah build --format docker "${arguments[@]}" .
    fi
    say "$image:$1 has $(size "$with" "$image:$1")"
}

size() {
    if [ "$1" = docker ]; then
        docker image inspect --format '{{.Size}}' "$2" | awk '{ printf "%.0f MB", $1 / 1e6 }'
    else
        buildah images --format '{{.Size}}' "$2"
    fi
}

# try runs checks in a container of the image, as its user and with its environment.
try() {
    local with name=$image:$1 container='' failed=0
    variant "$1"
    with=$(engine)
    if [ "$with" = buildah ]; then
        container=$(buildah from --pull-never "$name")
        # shellcheck disable=SC2064 # this container
        trap "buildah rm '$container' >/dev/null" EXIT
    fi
    inside() {
        if [ "$with" = docker ]; then
            docker run --rm --entrypoint sh "$name" -c "$1"
        else
            buildah run "$container" -- sh -c "$1"
        fi
    }
    check() {
        say "$name: $1"
        inside "$2" || {
            say "$name: failed: $1"
            failed=1
        }
    }
    # shellcheck disable=SC2016 # the container's shell expands these
    {
        check 'no pip, no compiler, no Python' 'for t in pip pip3 python3 cc gcc go ld; do ! command -v "$t" || exit 1; done'
        check 'not root' 'id; test "$(id -u)" -ne 0'
        # libcuda.so.1 comes with the driver, from the host.
        check 'no library is missing' '! find /opt/steadyfit -name "lib*.so*" -exec ldd {} + 2>/dev/null | grep "not found" | grep -v "libcuda.so.1"'
        check 'version and commit' 'steadyfit --version; ! steadyfit --version | grep unknown'
        check doctor 'steadyfit doctor'
        check 'fit and evaluate' 'steadyfit fit --model builtin:digits --data builtin:digits --validation builtin:digits --epochs 3 --seed 1 --out /tmp/digits && steadyfit evaluate --model /tmp/digits --data builtin:digits; code=$?; rm -rf /tmp/digits; exit $code'
        if [ "$1" = gpu ]; then
            # Eight libraries that TensorFlow needs, NCCL, CUPTI, ptxas and libdevice.
            check 'ptxas runs' '/opt/steadyfit/nvidia/cuda_nvcc/bin/ptxas --version'
            check 'CUDA is found beside TensorFlow' 'n=$(steadyfit doctor --json --gpu | grep -c "/opt/steadyfit/.* (beside TensorFlow)"); echo "$n parts"; test "$n" -ge 12'
            check 'a missing GPU is exit code 3' 'test -e /dev/nvidia0 || { steadyfit doctor --gpu >/dev/null; test $? -eq 3; }'
        fi
    }
    return "$failed"
}

# bases makes the two images from Debian's packages. The image with tools also gets this
# machine's Go, since Debian has no such version, and its CA certificates.
bases() {
    need buildah debootstrap go
    bootstrap "$base" ''
    bootstrap "$tools" gcc,libc6-dev,python3,python3-pip,ca-certificates
    say "now: make image BASE=$base GO_BASE=$tools PIP_BASE=$tools"
}

bootstrap() {
    local container root
    say "making $1"
    container=$(buildah from scratch)
    # shellcheck disable=SC2064 # this container
    trap "buildah rm '$container' >/dev/null" EXIT
    root=$(buildah mount "$container")
    debootstrap --variant=minbase ${2:+"--include=$2"} "$suite" "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >&2
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    if [ -n "$2" ]; then
        cp -a "$(go env GOROOT)" "$root/usr/local/go"
        cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
        buildah config --env PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --env GOTOOLCHAIN=local "$container"
    fi
    buildah umount "$container" >/dev/null
    buildah commit --format docker "$container" "$1" >/dev/null
    buildah rm "$container" >/dev/null
    trap - EXIT
}

case "${1:-}" in
build | try) "$1" "${2:-}" ;;
bases) bases ;;
*)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
