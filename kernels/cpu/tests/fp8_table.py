"""Writes fp8_table.rs: what every 8-bit float code means, by an implementation of others.

pip install numpy ml_dtypes
python kernels/cpu/tests/fp8_table.py > kernels/cpu/tests/common/fp8_table.rs
"""

import ml_dtypes
import numpy as np

print("//! Made by `kernels/cpu/tests/fp8_table.py` from the Python package ml_dtypes "
      f"{ml_dtypes.__version__}.")
print("//! Bits of the f32 value of every code; NaN is 0x7fc00000.")
codes = np.arange(256, dtype=np.uint8)
for name, dtype in [("E4M3", ml_dtypes.float8_e4m3fn), ("E5M2", ml_dtypes.float8_e5m2)]:
    values = codes.view(dtype).astype(np.float32)
    bits = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
    print(f"\n/// {name}.\n#[rustfmt::skip]\npub(crate) const {name}: [u32; 256] = [")
    for row in bits.reshape(-1, 8):
        print("    " + " ".join(f"0x{b:08x}," for b in row))
    print("];")

# Nearest codes of values around every boundary, without saturation or NaN in play.
for name, dtype in [("E4M3", ml_dtypes.float8_e4m3fn), ("E5M2", ml_dtypes.float8_e5m2)]:
    finite = codes[:127] if name == "E4M3" else codes[:124]
    v = finite.view(dtype).astype(np.float64)
    ties = ((v[:-1] + v[1:]) / 2).astype(np.float32)
    inf = np.float32(np.inf)
    near = [x for t in ties for x in (np.nextafter(t, np.float32(0)), t, np.nextafter(t, inf))]
    got = np.array(near, np.float32).astype(dtype).view(np.uint8)
    print(f"\n/// Codes of the {len(ties)} midpoints between neighbours of {name}: just below,")
    print("/// at and just above each.")
    print(f"#[rustfmt::skip]\npub(crate) const {name}_TIES: [u8; {len(got)}] = [")
    for i in range(0, len(got), 16):
        print("    " + " ".join(f"{c}," for c in got[i:i + 16]))
    print("];")
