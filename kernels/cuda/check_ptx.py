#!/usr/bin/env python3
"""Compiles every kernel with NVRTC and ptxas for three architectures, without a GPU.

usage: check_ptx.py --toolkit DIR [--bless]

DIR is a virtual environment with the wheels nvidia-cuda-nvrtc and nvidia-cuda-nvcc, or a CUDA
installation. The registers, shared memory, stack and spills that ptxas reports are compared
with ptxas.csv beside this file; --bless writes that file instead. Files named *_sm90.cu are
for sm_90a alone. Exit codes: 0 as committed, 1 a kernel fails to compile, spills, uses a stack,
has products that ptxas puts one after the other, or differs from the table, 2 no toolkit.
With nvdisasm in DIR (the wheel nvidia-cuda-nvdisasm) the machine code of sm_90a is looked at too:
exponentials must lie before the wait for the products that they are to overlap, and every prefill
must have such a wait.
"""

import argparse
import csv
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "ptxas.csv"
ARCHITECTURES = ["80", "90a", "100"]
# Sums fuse only where the source says so: then the emulator computes what the device does.
FLAGS = ["--std=c++17", "--fmad=false"]
# No kernel may spill, and none has a reason to keep anything in local memory.
STACK_BUDGET_BYTES = 0
SPILL_BUDGET_BYTES = 0
# What ptxas says where it waits for every wgmma at once.
SERIALIZED = "wgmma.mma_async instructions are serialized"
# Kernels that compute exponentials while products are under way.
OVERLAPPING = "prefill_sm90_"
COLUMNS = ["kernel", "arch", "registers", "static_shared_bytes", "stack_bytes", "spill_bytes"]


def find_toolkit(directory):
    """Paths of libnvrtc and ptxas below `directory`, or None."""
    root = pathlib.Path(directory)
    nvrtc = sorted(root.rglob("libnvrtc.so*"))
    ptxas = [p for p in sorted(root.rglob("ptxas")) if p.is_file()]
    return (nvrtc[0], ptxas[0]) if nvrtc and ptxas else None


class Nvrtc:
    """The run-time compiler, as the engine uses it: sources in memory, no toolkit headers."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def _text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.lib, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    def compile(self, source, headers, arch):
        """PTX of `source`; raises ValueError with the compiler's log."""
        names = (ctypes.c_char_p * len(headers))(*[h.name.encode() for h in headers])
        texts = (ctypes.c_char_p * len(headers))(*[h.read_bytes() for h in headers])
        program = ctypes.c_void_p()
        self.lib.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(),
                                    source.name.encode(), len(headers), texts, names)
        flags = [f"--gpu-architecture=compute_{arch}", *FLAGS]
        options = (ctypes.c_char_p * len(flags))(*[f.encode() for f in flags])
        failed = self.lib.nvrtcCompileProgram(program, len(flags), options)
        log = self._text(program, "ProgramLog")
        if failed:
            raise ValueError(f"{source.name}, compute_{arch}:\n{log}")
        return self._text(program, "PTX")


def resources(report, arch):
    """Rows of the table from what `ptxas -v` says."""
    rows, row = [], None
    for line in report.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            row = {"kernel": found[1], "arch": f"sm_{arch}", "static_shared_bytes": 0}
            rows.append(row)
        if found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                              r"(\d+) bytes spill loads", line):
            row["stack_bytes"] = int(found[1])
            row["spill_bytes"] = int(found[2]) + int(found[3])
        if found := re.search(r"Used (\d+) registers", line):
            row["registers"] = int(found[1])
            if shared := re.search(r"(\d+) bytes smem", line):
                row["static_shared_bytes"] = int(shared[1])
    return rows


def identity(row):
    return row["kernel"], row["arch"]


def sources_of(arch):
    """Kernels of an architecture: wgmma is of sm_90a alone."""
    return [s for s in sorted((HERE / "cu").glob("*.cu"))
            if arch == "90a" or not s.name.endswith("_sm90.cu")]


def refuse_serialized(report, what):
    for line in report.splitlines():
        if SERIALIZED in line:
            raise ValueError(f"{what}: {line}")


def stretches(sass):
    """Exponentials from each wait for all groups but one to the wait behind it, by kernel."""
    found, kernel, exponentials = {}, None, None
    for line in sass.splitlines():
        if label := re.match(r"\.text\.(\w+):", line):
            kernel, exponentials = label[1], None
        elif wait := re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\w+)", line):
            if exponentials is not None:
                found.setdefault(kernel, []).append(exponentials)
            exponentials = 0 if wait[1] == "1" else None
        elif "MUFU.EX2" in line and exponentials is not None:
            exponentials += 1
    return found


def refuse_early_waits(sass, kernels, what):
    """ptxas is free to wait for products before the arithmetic that stands before the wait.

    A kernel that waits for all groups but one computes its exponentials, 2 rows of 32 columns a
    thread, before it waits for the last one. Gives the number of such stretches. One of `kernels`
    without any is refused: either it waits for all at once, or nvdisasm writes waits otherwise
    than they are looked for here, and nothing was looked at.
    """
    found = stretches(sass)
    for kernel in kernels:
        if kernel not in found:
            raise ValueError(f"{what}: {kernel} has no wait for all groups of products but one")
    for kernel, counts in found.items():
        if min(counts) < 64:
            raise ValueError(f"{what}: {kernel} waits for its products after {min(counts)} of "
                             "64 exponentials")
    return sum(map(len, found.values()))


def disassembly(nvdisasm, code):
    return subprocess.run([str(nvdisasm), str(code)], capture_output=True, text=True,
                          check=True).stdout


def measure(nvrtc, ptxas, nvdisasm):
    """Rows of the table, and the number of stretches of exponentials that were looked at."""
    headers = sorted((HERE / "cu").glob("*.cuh"))
    rows, looked_at = [], 0
    for arch in ARCHITECTURES:
        for source in sources_of(arch):
            ptx = nvrtc.compile(source, headers, arch)
            with tempfile.TemporaryDirectory() as scratch:
                path = pathlib.Path(scratch) / "kernel.ptx"
                path.write_text(ptx)
                command = [str(ptxas), "-v", f"-arch=sm_{arch}", "-o", f"{scratch}/o", str(path)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0:
                    raise ValueError(f"{source.name}, sm_{arch}:\n{done.stderr}")
                its_rows = resources(done.stderr, arch)
                if nvdisasm and source.name.endswith("_sm90.cu"):
                    names = [r["kernel"] for r in its_rows]
                    overlapping = [n for n in names if n.startswith(OVERLAPPING)]
                    sass = disassembly(nvdisasm, f"{scratch}/o")
                    looked_at += refuse_early_waits(sass, overlapping, source.name)
            refuse_serialized(done.stderr, f"{source.name}, sm_{arch}")
            rows += its_rows
    return sorted(rows, key=identity), looked_at


def problems(rows, table):
    found = []
    for row in rows:
        name = f"{row['kernel']} for {row['arch']}"
        if row["stack_bytes"] > STACK_BUDGET_BYTES:
            found.append(f"{name}: a stack of {row['stack_bytes']} bytes")
        if row["spill_bytes"] > SPILL_BUDGET_BYTES:
            found.append(f"{name}: spills {row['spill_bytes']} bytes")
    ours = {identity(r): {c: str(r[c]) for c in COLUMNS} for r in rows}
    theirs = {identity(r): r for r in table}
    for k in sorted(set(ours) | set(theirs)):
        mine, table_has = ours.get(k), theirs.get(k)
        if mine is None or table_has is None:
            place = "the table" if mine is None else "the code"
            found.append(f"{k[0]} for {k[1]}: only in {place}")
            continue
        for column in COLUMNS:
            if mine[column] != table_has[column]:
                found.append(f"{k[0]} for {k[1]}: {column} {mine[column]}, "
                             f"the table has {table_has[column]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toolkit", required=True, help="directory with libnvrtc and ptxas")
    parser.add_argument("--bless", action="store_true", help="write ptxas.csv")
    args = parser.parse_args()
    toolkit = find_toolkit(args.toolkit)
    if toolkit is None:
        print(f"no libnvrtc and ptxas below {args.toolkit}", file=sys.stderr)
        return 2
    nvrtc = Nvrtc(toolkit[0])
    nvdisasm = next((p for p in sorted(pathlib.Path(args.toolkit).rglob("nvdisasm"))
                     if p.is_file()), None)
    try:
        rows, looked_at = measure(nvrtc, toolkit[1], nvdisasm)
    except ValueError as failure:
        print(failure, file=sys.stderr)
        return 1
    if args.bless:
        with TABLE.open("w", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with TABLE.open(newline="") as committed:
        found = problems(rows, list(csv.DictReader(committed)))
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        return 1
    waits = "no nvdisasm: waits not looked at"
    if nvdisasm:
        waits = f"{looked_at} waits of sm_90a in place"
    print(f"{len(rows)} kernels compiled with NVRTC {nvrtc.version()}; resources as committed; "
          f"{waits}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
