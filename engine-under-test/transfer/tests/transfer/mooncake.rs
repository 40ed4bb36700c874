//! What only Mooncake has: an engine in another process, which may end by itself.

use std::process::Command;

use pb_transfer::{Cause, Ended, Granularity, Mode, MooncakeEngine, Span};

use crate::engines::peer;
use crate::rigs::{Engines, Pool, mooncake_engines, mooncake_pair};
use crate::runs::{Run, SHAPE, lend_on};

/// A transfer between two engines.
fn transfer(engines: &[MooncakeEngine; 2]) -> Run {
    let engine = peer(SHAPE, 4);
    let ends = |clock| mooncake_pair(engines, clock, None);
    let (from, to) = (Pool::images(&engine, 24), Pool::images(&engine, 0));
    let connected = Engines::over(ends, (&engine, from), (&engine, to));
    let how = (Mode::Push, Granularity::Layer);
    lend_on(connected, (&engine, &engine), how)
}

fn kill(engine: &MooncakeEngine) {
    let id = engine.process_id().expect("a process").to_string();
    let killed = Command::new("kill").args(["-9", &id]).status().unwrap();
    assert!(killed.success());
}

/// The bytes go through the engines: without either of them there are none.
#[test]
fn a_killed_engine_ends_its_connections_and_the_next_one_has_another() {
    let engines = mooncake_engines();
    for dies in [0, 1] {
        let mut run = transfer(&engines);
        run.reserve();
        run.compute(Span::whole(2, 2));
        run.engines.until("the first cells", |e| {
            let source = e.source.as_ref();
            source.is_some_and(|source| source.queue_depth() == 0)
        });
        let before = engines[dies].process_id();
        kill(&engines[dies]);
        run.compute(Span {
            block: 2,
            blocks: 3,
            ..Span::whole(5, 2)
        });
        run.engines
            .until("ends", |e| e.freed().is_some() && e.failed().is_some());
        assert_eq!(run.engines.failed(), Some(Cause::LinkDown), "{dies}");
        assert_eq!(run.engines.freed(), Some(Ended::PeerDead), "{dies}");
        assert!(!run.engines.started());
        run.check_clean();

        let mut next = transfer(&engines);
        assert_ne!(engines[dies].process_id(), before);
        next.reserve();
        next.compute_all();
        next.finish();
        next.check_clean();
    }
}
