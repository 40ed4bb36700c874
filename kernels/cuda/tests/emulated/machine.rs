//! The machine itself: what it finds, and that it lets good programs pass.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use pb_kernels_cpu::Fp8E4m3;
use pb_kernels_cuda::{Device, DeviceExt, Emulator, FaultKind, KernelError, Launch};

use crate::common::{Rng, variant};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct FaultParams {
    input: u64,
    out: u64,
    fault: u32,
    zero: u32,
}

/// Runs wrong program `number` under the plain order or one drawn from `seed`.
fn probe(device: &Emulator<'_>, number: u32, seed: u64) -> Result<Vec<f32>, KernelError> {
    let ramp: Vec<f32> = (0..256u16).map(f32::from).collect();
    let out = device.empty::<f32>("out", 256)?;
    let params = FaultParams {
        input: device.input("in", &ramp)?.address(),
        out: out.address(),
        fault: number,
        zero: 0,
    };
    device.permute(seed);
    let launch = Launch {
        kernel: "probe_fault",
        grid: [if number == 14 { 2 } else { 1 }, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 256,
    };
    device.launch(launch, bytemuck::bytes_of(&params))?;
    device.download(&out)
}

#[test]
fn every_kind_of_fault_is_found_in_every_order() {
    use FaultKind::*;
    let Some(library) = variant("probe.cu", &[]) else {
        return;
    };
    let found = [
        (1, OutOfBounds),
        (2, OutOfBounds),
        (3, Uninitialised),
        (4, Uninitialised),
        (6, Race),
        (8, Race),
        (9, Divergence),
        (10, Divergence),
        (11, Misaligned),
        (12, ReadOnly),
        (13, PendingCopy),
        (14, Race),
    ];
    for (number, kind) in found {
        for seed in 0..6 {
            let device = Emulator::new(&library);
            match probe(&device, number, seed) {
                Err(KernelError::Fault(fault)) => {
                    assert_eq!(fault.kind, kind, "program {number}, order {seed}: {fault}");
                }
                other => panic!("program {number}, order {seed}: {other:?}"),
            }
        }
    }
    // What a reader finds who comes first is not yet written, and what one finds who comes
    // later was written without a barrier: by order either is reported.
    for number in [5, 7, 15] {
        for seed in 0..6 {
            let device = Emulator::new(&library);
            let Err(KernelError::Fault(fault)) = probe(&device, number, seed) else {
                panic!("program {number}, order {seed}: nothing found");
            };
            let good = [Race, Uninitialised, PendingCopy].contains(&fault.kind);
            assert!(good, "program {number}, order {seed}: {fault}");
        }
    }
}

#[test]
fn a_program_without_faults_passes_in_every_order() {
    let Some(library) = variant("probe.cu", &[]) else {
        return;
    };
    for seed in 0..20 {
        let out = probe(&Emulator::new(&library), 0, seed).unwrap();
        for t in 0..64u16 {
            assert_eq!(out[usize::from(t)], f32::from((t + 1) % 64));
            assert_eq!(out[usize::from(64 + t)], f32::from(t ^ 1));
        }
    }
}

#[test]
fn messages_name_kernel_thread_and_place() {
    let Some(library) = variant("probe.cu", &[]) else {
        return;
    };
    let device = Emulator::new(&library);
    let text = probe(&device, 1, 0).unwrap_err().to_string();
    let want = "OutOfBounds: probe_fault, block (0,0,0), thread 0: read of 4 bytes: byte 1024 of \
                in, which has 1024";
    assert_eq!(text, want);
    // A machine that found a fault is as good as new.
    assert!(probe(&device, 0, 0).is_ok());
}

#[test]
fn impossible_launches_and_unknown_kernels_are_refused() {
    let Some(library) = variant("probe.cu", &[]) else {
        return;
    };
    let device = Emulator::new(&library);
    let launch = |kernel, threads, shared_bytes| {
        let launch = Launch {
            kernel,
            grid: [1, 1, 1],
            block: [threads, 1, 1],
            shared_bytes,
        };
        device.launch(launch, &[0; 24]).unwrap_err().to_string()
    };
    assert!(launch("probe_fault", 48, 0).contains("multiple of 32"));
    assert!(launch("probe_fault", 2048, 0).contains("at most 1024"));
    assert!(launch("probe_fault", 64, 300_000).contains("227 KiB"));
    assert!(launch("nothing", 64, 0).contains("no kernel nothing"));
    assert!(launch("pb_machine_new", 64, 0).contains("no kernel"));
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ConvertParams {
    from: u64,
    bf16_bits: u64,
    f16_bits: u64,
    e4m3_bits: u64,
    back: u64,
    n: u32,
    pad: u32,
}

/// Numbers at which rounding is decided: every tie and neighbour of every f16 and E4M3 value,
/// then bit patterns at random.
fn awkward() -> Vec<f32> {
    let mut x = Vec::new();
    for bits in (0..=0x7c00u16).step_by(7) {
        let (low, high) = (
            f16::from_bits(bits).to_f32(),
            f16::from_bits(bits + 1).to_f32(),
        );
        x.extend([low, (low + high) / 2.0]);
    }
    for code in 0..0x7eu8 {
        let (low, high) = (Fp8E4m3(code).to_f32(), Fp8E4m3(code + 1).to_f32());
        x.extend([low, (low + high) / 2.0]);
    }
    let near: Vec<f32> = x
        .iter()
        .flat_map(|v| [v.next_up(), v.next_down()])
        .collect();
    x.extend(near);
    let mut rng = Rng(3);
    x.extend((0..20_000).map(|_| f32::from_bits(rng.next_u64() as u32)));
    x.extend([
        0.0,
        448.0,
        464.0,
        65_504.0,
        65_519.99,
        65_520.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ]);
    let negative: Vec<f32> = x.iter().map(|v| -v).collect();
    x.extend(negative);
    x
}

#[test]
fn conversions_agree_with_other_implementations() {
    let Some(library) = variant("probe.cu", &[]) else {
        return;
    };
    let (device, x) = (Emulator::new(&library), awkward());
    let n = x.len();
    let from = device.input("from", &x).unwrap();
    let (b, h) = (
        device.empty::<u16>("bf16", n).unwrap(),
        device.empty("f16", n).unwrap(),
    );
    let (e, back) = (
        device.empty("e4m3", n).unwrap(),
        device.empty::<f32>("b", 3 * n).unwrap(),
    );
    let params = ConvertParams {
        from: from.address(),
        bf16_bits: b.address(),
        f16_bits: h.address(),
        e4m3_bits: e.address(),
        back: back.address(),
        n: n as u32,
        pad: 0,
    };
    let launch = Launch {
        kernel: "probe_convert",
        grid: [n.div_ceil(256) as u32, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
    };
    device.launch(launch, bytemuck::bytes_of(&params)).unwrap();
    let (b, h) = (
        device.download(&b).unwrap(),
        device.download::<u16>(&h).unwrap(),
    );
    let (e, back) = (
        device.download::<u8>(&e).unwrap(),
        device.download(&back).unwrap(),
    );
    for (i, x) in x.iter().enumerate() {
        let want = [bf16::from_f32(*x).to_f32(), f16::from_f32(*x).to_f32()];
        let code = Fp8E4m3::from_f32(*x);
        if x.is_nan() {
            assert_eq!((b[i], h[i], e[i]), (0x7fff, 0x7fff, 0x7f));
            assert!(
                [back[i], back[n + i], back[2 * n + i]]
                    .iter()
                    .all(|y| y.is_nan())
            );
            continue;
        }
        assert_eq!(b[i], bf16::from_f32(*x).to_bits(), "{x:e} to bf16");
        assert_eq!(h[i], f16::from_f32(*x).to_bits(), "{x:e} to f16");
        assert_eq!(e[i], code.0, "{x:e} to e4m3");
        let got = [back[i], back[n + i], back[2 * n + i]].map(f32::to_bits);
        assert_eq!(
            got,
            [want[0], want[1], code.to_f32()].map(f32::to_bits),
            "{x:e} back"
        );
    }
}
