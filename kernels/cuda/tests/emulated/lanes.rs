//! Lanes, events and graphs of the emulated machine: what must be ordered shows when it is not.

use pb_kernels_cuda::ops::gather_rows;
use pb_kernels_cuda::{
    Buffer, Device, DeviceExt, Emulator, Graphs, KernelError, Lane, Lanes, Schedule,
};

use crate::common::library;

const BYTES: usize = 64;

/// A value goes from pinned memory to a buffer in the copy lane, through a kernel to another in
/// the compute lane, and back in the copy lane; waits are optional.
fn round_trip(device: &Emulator<'_>, waits: [bool; 2]) -> Result<Vec<u8>, KernelError> {
    let from = device.zeroed::<u8>("from", BYTES)?;
    let to = device.zeroed::<u8>("to", BYTES)?;
    let pinned = [device.pinned(BYTES)?, device.pinned(BYTES)?];
    let [placed, arrived, computed, done] = [(); 4].map(|()| device.event().unwrap());
    device.record(placed)?;
    device.lane(Lane::Copy);
    device.wait(placed)?;
    device.fill(pinned[0], 0, &[7; BYTES])?;
    device.write_pinned(from, pinned[0])?;
    device.record(arrived)?;
    device.lane(Lane::Compute);
    if waits[0] {
        device.wait(arrived)?;
    }
    gather_rows(device, &from, &[0], BYTES, &to)?;
    device.record(computed)?;
    device.lane(Lane::Copy);
    if waits[1] {
        device.wait(computed)?;
    }
    device.read_pinned(to, pinned[1])?;
    device.record(done)?;
    device.lane(Lane::Compute);
    device.finish(done)?;
    let mut got = vec![0; BYTES];
    device.fetch(pinned[1], 0, &mut got)?;
    Ok(got)
}

#[test]
fn what_events_order_is_the_same_under_every_schedule_and_what_they_do_not_is_not() {
    let Some(library) = library() else { return };
    let late = Lane::ALL.map(Schedule::Late);
    let random = (1..=8).map(Schedule::Random);
    let all: Vec<Schedule> = [Schedule::Eager]
        .into_iter()
        .chain(late)
        .chain(random)
        .collect();
    let differing = |waits: [bool; 2]| {
        let wrong = |schedule: &&Schedule| {
            let device = Emulator::new(library);
            device.schedule(**schedule).unwrap();
            round_trip(&device, waits).unwrap() != [7; BYTES]
        };
        all.iter().filter(wrong).count()
    };
    assert_eq!(differing([true, true]), 0);
    // Eager order hides what is missing; late and random orders do not.
    for waits in [[false, true], [true, false]] {
        let wrong = differing(waits);
        assert!(wrong >= 1 && wrong < all.len(), "{waits:?}: {wrong}");
    }
}

#[test]
fn memory_given_back_under_a_copy_is_a_fault() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    device.schedule(Schedule::Late(Lane::Compute)).unwrap();
    let mark = device.mark();
    let from = device.zeroed::<u8>("from", BYTES).unwrap();
    let out = device.empty::<u8>("out", BYTES).unwrap();
    gather_rows(&device, &from, &[0], BYTES, &out).unwrap();
    // In its own lane memory goes back behind its last use.
    device.release(mark).unwrap();
    let kept = device.zeroed::<u8>("kept", BYTES).unwrap();
    device.download(&kept).unwrap();
    // In another it may go first.
    let mark = device.mark();
    let gone = device.zeroed::<u8>("gone", BYTES).unwrap();
    let (placed, done) = (device.event().unwrap(), device.event().unwrap());
    device.record(placed).unwrap();
    device.finish(placed).unwrap();
    device.schedule(Schedule::Late(Lane::Copy)).unwrap();
    let use_it = |buffer: &Buffer<u8>| {
        device.lane(Lane::Copy);
        let done = gather_rows(&device, buffer, &[0], BYTES, &kept);
        device.lane(Lane::Compute);
        done
    };
    use_it(&gone).unwrap();
    device.lane(Lane::Copy);
    device.record(done).unwrap();
    device.lane(Lane::Compute);
    device.release(mark).unwrap();
    let fault = device.finish(done).unwrap_err();
    assert!(matches!(fault, KernelError::Fault(_)), "{fault}");
}

#[test]
fn a_graph_runs_on_what_lies_there_and_holds_nothing_but_launches() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let from = device.zeroed::<u8>("from", BYTES).unwrap();
    let to = device.zeroed::<u8>("to", BYTES).unwrap();
    let first = device.input("rows", &[0u32]).unwrap();
    let launch = |rows: &Buffer<u32>| {
        let params = [from.address(), rows.address(), to.address(), BYTES as u64];
        let launch = pb_kernels_cuda::Launch {
            kernel: "gather_rows",
            grid: [1, 1, 1],
            block: [128, 1, 1],
            shared_bytes: 0,
        };
        device.launch(launch, bytemuck::cast_slice(&params))
    };
    let graph = device.capture(&mut || launch(&first)).unwrap();
    assert_eq!(
        device.download(&to).unwrap(),
        [0; BYTES],
        "recorded, not run"
    );
    for value in [3, 4] {
        device.write(from, &[value; BYTES]).unwrap();
        device.replay(graph).unwrap();
        assert_eq!(device.download(&to).unwrap(), [value; BYTES]);
    }
    let refused: [&dyn Fn() -> Result<(), KernelError>; 4] = [
        &|| device.zeroed::<u8>("new", 4).map(|_| ()),
        &|| device.write(from, &[1]),
        &|| device.download(&to).map(|_| ()),
        &|| device.release(device.mark()),
    ];
    for (i, what) in refused.into_iter().enumerate() {
        let text = device.capture(&mut || what()).unwrap_err().to_string();
        assert!(text.contains("while a graph is recorded"), "{i}: {text}");
    }
    device.forget_graphs().unwrap();
    let text = device.replay(graph).unwrap_err().to_string();
    assert!(text.contains("one that was recorded"), "{text}");
    assert_ne!(device.capture(&mut || launch(&first)).unwrap(), graph);
}
