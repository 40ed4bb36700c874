//! One suite for every transport: what goes wrong has a typed outcome, and never wrong bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pb_contract::{Clock, RequestId};
use pb_transfer::{Cause, Ended, Granularity, Message, Mode, Span, Tap, TapVerdict};

use crate::engines::peer;
use crate::rigs::{Engines, LEASE, Rig, STALL, rigs};
use crate::runs::{MODES, SHAPE, run};

/// Flips a bit of the payload of those frames of cells that `which` names by their number.
fn flip(which: fn(u32) -> bool) -> Tap {
    let mut frames = 0;
    Box::new(move |message, payload| {
        if matches!(message, Message::Data(_)) {
            if which(frames) {
                payload[5] ^= 0x10;
            }
            frames += 1;
        }
        TapVerdict::Pass
    })
}

#[test]
fn a_corrupt_cell_is_sent_again() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        for mode in MODES {
            let tap = flip(|frame| frame == 0);
            let how = (mode, Granularity::Bulk);
            let mut run = run(rig, (&engine, &engine), how, Some(tap));
            run.compute_all();
            run.reserve();
            let row = run.finish();
            assert_eq!((row.cells, row.resent_cells), (11, 1), "{rig:?}");
            assert_eq!(run.engines.sink().unused().corrupt, 1);
            run.check_clean();
        }
    }
}

#[test]
fn a_cell_that_stays_corrupt_fails_the_transfer_on_both_sides() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        let how = (Mode::Push, Granularity::Layer);
        let mut run = run(rig, (&engine, &engine), how, Some(flip(|_| true)));
        run.compute_all();
        run.reserve();
        run.engines
            .until("failure", |e| e.failed().is_some() && e.freed().is_some());
        assert_eq!(run.engines.failed(), Some(Cause::Corrupt), "{rig:?}");
        assert_eq!(run.engines.freed(), Some(Ended::Aborted));
        assert_eq!(run.row().cause.as_deref(), Some("corrupt"));
        assert!(!run.engines.started());
        run.check_clean();
    }
}

#[test]
fn a_cut_at_any_byte_of_a_frame_frees_both_sides_and_starts_nothing() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        // A header of 24 bytes, a body of some 100, cells of 384: before, within, between.
        for bytes in [0, 1, 23, 24, 25, 80, 130, 131, 200, 384, 500, 900] {
            let tap: Tap = Box::new(move |message, _| match message {
                Message::Data(_) => TapVerdict::CutAfter(bytes),
                _ => TapVerdict::Pass,
            });
            let how = (Mode::Push, Granularity::Layer);
            let mut run = run(rig, (&engine, &engine), how, Some(tap));
            run.reserve();
            run.compute_all();
            run.engines.until("ends", |e| {
                e.freed().is_some() && (e.failed().is_some() || e.started())
            });
            if run.engines.started() {
                // The cells lie in a slot and are not cut, and the cut came after the frame
                // that names them. The acknowledgement may have been faster.
                assert!(
                    matches!(rig, Rig::Shm | Rig::Nixl | Rig::Mooncake),
                    "{rig:?}"
                );
                assert_ne!(run.engines.freed(), Some(Ended::Aborted));
                run.check_bytes();
            } else {
                let outcomes = (run.engines.freed(), run.engines.failed());
                let expected = (Some(Ended::PeerDead), Some(Cause::LinkDown));
                assert_eq!(outcomes, expected, "{rig:?} {bytes}");
            }
            run.check_clean();
        }
    }
}

#[test]
fn a_late_acknowledgement_changes_nothing() {
    let engine = peer(SHAPE, 4);
    // Over one connection, so that cells come before the message that the lease has ended.
    for rig in [Rig::Local, Rig::Shm, Rig::Tcp(1)] {
        let sent = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&sent);
        let tap: Tap = Box::new(move |message, _| {
            if let Message::Data(head) = message {
                count.fetch_add(head.span.cells() as u32, Ordering::SeqCst);
            }
            TapVerdict::Pass
        });
        let how = (Mode::Push, Granularity::Bulk);
        let mut run = run(rig, (&engine, &engine), how, Some(tap));
        run.compute_all();
        run.reserve();
        run.engines.step_sink();
        for _ in 0..60_000 {
            if sent.load(Ordering::SeqCst) == 10 {
                break;
            }
            run.engines.step_source();
        }
        // All cells are under way, and the sink is busy for longer than the lease.
        run.engines.pass(LEASE);
        run.engines.step_source();
        run.engines.until("late acknowledgement", |e| {
            e.source.as_ref().is_some_and(|s| s.late().acks == 1)
        });
        assert_eq!(run.engines.freed(), Some(Ended::Expired), "{rig:?}");
        assert_eq!(run.row().ended, Ended::Expired);
        run.check_bytes();
        run.check_clean();
    }
}

#[test]
fn a_sink_that_is_slow_to_find_room_keeps_its_lease_and_a_silent_one_loses_it() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        let mut run = run(
            rig,
            (&engine, &engine),
            (Mode::Pull, Granularity::Bulk),
            None,
        );
        run.compute_all();
        run.engines.until("offer", Engines::offered);
        for _ in 0..9 {
            // The sink renews as long as it lives, also without room.
            run.engines.pass_half_a_lease();
            let depth = run.engines.sink().queue_depth();
            assert_eq!(
                (depth, run.engines.source().queue_depth()),
                (1, 1),
                "{rig:?}"
            );
        }
        run.engines.pass(LEASE);
        run.engines.step_source();
        assert_eq!(run.engines.freed(), Some(Ended::Expired), "{rig:?}");
        run.engines.until("failure", |e| e.failed().is_some());
        assert_eq!(run.engines.failed(), Some(Cause::Expired), "{rig:?}");
        run.check_clean();
    }
}

#[test]
fn a_source_that_stops_is_given_up_by_the_sink() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        let mut run = run(
            rig,
            (&engine, &engine),
            (Mode::Push, Granularity::Layer),
            None,
        );
        run.reserve();
        run.compute(Span::whole(2, 1));
        // The stall counts from the last cell that came, whenever that was.
        while run.engines.failed().is_none() {
            run.engines.pass_half_a_lease();
        }
        assert!(run.engines.clock.now() >= STALL);
        run.engines
            .until("failure", |e| e.failed().is_some() && e.freed().is_some());
        assert_eq!(run.engines.failed(), Some(Cause::Stalled), "{rig:?}");
        run.check_clean();
        let late = run.engines.source().seal(run.id, Span::whole(1, 1));
        assert!(!late.unwrap());
    }
}

#[test]
fn the_death_of_either_side_is_an_outcome_of_the_other() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        for sink_dies in [true, false] {
            let how = (Mode::Pull, Granularity::Layer);
            let mut run = run(rig, (&engine, &engine), how, None);
            run.reserve();
            run.compute(Span::whole(2, 2));
            run.engines.step_sink();
            run.engines.step_source();
            if sink_dies {
                run.engines.sink = None;
                run.engines.until("end", |e| e.freed().is_some());
                assert_eq!(run.engines.freed(), Some(Ended::PeerDead), "{rig:?}");
                assert_eq!(run.row().cause.as_deref(), Some("link_down"));
            } else {
                run.engines.source = None;
                run.engines.until("end", |e| e.failed().is_some());
                assert_eq!(run.engines.failed(), Some(Cause::LinkDown), "{rig:?}");
            }
            run.check_clean();
        }
    }
}

#[test]
fn either_side_may_cancel_at_any_step() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        for (at, by_sink) in (0..12).flat_map(|at| [(at, true), (at, false)]) {
            let mut run = run(
                rig,
                (&engine, &engine),
                (Mode::Pull, Granularity::Layer),
                None,
            );
            run.reserve();
            for step in 0..12 {
                if step == 3 {
                    run.compute_all();
                }
                if step == at && by_sink {
                    run.engines.sink().cancel(RequestId(7));
                } else if step == at {
                    let id = run.id;
                    run.engines.source().abort(id, Cause::Cancelled);
                }
                run.engines.step_sink();
                run.engines.step_source();
            }
            run.check_clean();
            if !run.engines.started() {
                assert_eq!(run.engines.failed(), Some(Cause::Cancelled), "{rig:?} {at}");
            } else {
                run.check_bytes();
            }
        }
    }
}
