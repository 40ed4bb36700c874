//! Blocks that the sink has already: not asked for, not written, not acknowledged.

use pb_contract::{BlockId, Nanos, RequestId};
use pb_transfer::{
    Defect, Ended, Granularity, Lend, Message, Mode, Offer, Order, Sink, SinkAction, SinkConfig,
    Source, SourceAction, SourceConfig, Span, TransferId,
};

const NOW: Nanos = Nanos(5);

fn blocks(ids: std::ops::Range<u32>) -> Vec<BlockId> {
    ids.map(BlockId).collect()
}

#[test]
fn the_sink_asks_for_the_rest_and_acknowledges_that() {
    let mut sink = Sink::new(SinkConfig {
        layers: 2,
        source_block_size: 4,
        blocks: 8,
        transfers: 2,
        window_cells: 64,
        stall: Nanos::from_secs(1),
        retries: 1,
        defect: Defect::None,
    });
    let id = TransferId(3);
    let offer = Offer {
        id,
        request: RequestId(1),
        tokens: 11,
        blocks: 3,
        mode: Mode::Push,
        granularity: Granularity::Bulk,
        lease_ns: 1_000_000,
    };
    sink.on_message(NOW, &Message::Offer(offer)).unwrap();
    assert_eq!(sink.next_action(), Some(SinkAction::Reserve(offer)));
    assert!(sink.reserved_beyond(NOW, id, blocks(10..13), 2));
    let rest = Span {
        block: 2,
        blocks: 1,
        layer: 0,
        layers: 2,
    };
    let want = Message::Want { id, span: rest };
    assert_eq!(sink.next_action(), Some(SinkAction::Send(want)));
    assert_eq!(sink.next_action(), None);
    // A source that sends what others share is not let near it.
    assert_eq!(sink.admit(id, Span::cell(1, 0)), None);
    assert_eq!(sink.admit(id, Span::whole(3, 2)), None);
    assert!(sink.admit(id, rest).is_some());
    sink.arrived(NOW, id, rest, &[true, true]);
    assert_eq!(sink.next_action(), Some(SinkAction::Place { id }));
    sink.placed(id, Ok(()));
    let ack = Message::Ack { id, cells: 2 };
    assert_eq!(sink.next_action(), Some(SinkAction::Send(ack)));
    assert!(matches!(sink.next_action(), Some(SinkAction::Start { .. })));
}

#[test]
fn a_sink_that_has_everything_asks_for_the_last_block_all_the_same() {
    let mut sink = Sink::new(SinkConfig {
        layers: 1,
        source_block_size: 4,
        blocks: 8,
        transfers: 2,
        window_cells: 64,
        stall: Nanos::from_secs(1),
        retries: 1,
        defect: Defect::None,
    });
    let id = TransferId(1);
    let offer = Offer {
        id,
        request: RequestId(1),
        tokens: 8,
        blocks: 2,
        mode: Mode::Pull,
        granularity: Granularity::Bulk,
        lease_ns: 1_000_000,
    };
    sink.on_message(NOW, &Message::Offer(offer)).unwrap();
    sink.next_action();
    assert!(sink.reserved_beyond(NOW, id, blocks(0..2), 9));
    let span = Span::cell(1, 0);
    let want = Message::Want { id, span };
    assert_eq!(sink.next_action(), Some(SinkAction::Send(want)));
}

#[test]
fn the_source_believes_an_acknowledgement_of_what_was_asked_for_and_sent() {
    for (asked, sent, cells, believed) in [
        (1, true, 2, true),
        (3, true, 6, true),
        (1, true, 6, false),
        (1, true, 1, false),
        (1, false, 2, false),
        (0, true, 0, false),
    ] {
        let mut source = Source::new(
            SourceConfig {
                layers: 2,
                order: Order::BlockMajor,
                lease: Nanos::from_secs(1),
                frame_cells: 64,
                frames_in_flight: 4,
                defect: Defect::None,
            },
            7,
        );
        let id = source.lend(
            NOW,
            Lend {
                request: RequestId(1),
                tokens: 12,
                blocks: blocks(0..3),
                mode: Mode::Pull,
                granularity: Granularity::Bulk,
            },
        );
        if sent {
            source.seal(id, Span::whole(3, 2), &[0; 6]);
        }
        let span = Span {
            block: 3 - asked,
            blocks: asked,
            layer: 0,
            layers: 2,
        };
        if asked > 0 {
            let want = Message::Want { id, span };
            source.on_message(NOW, &want).unwrap();
        }
        while let Some(action) = source.next_action() {
            if let SourceAction::Post { id, .. } = action {
                source.sent(NOW, id, 1);
            }
        }
        let ack = source.on_message(NOW, &Message::Ack { id, cells });
        assert_eq!(ack.is_ok(), believed, "{asked} {sent} {cells}");
        let freed = source.next_action().is_some_and(|action| {
            matches!(
                action,
                SourceAction::Free {
                    ended: Ended::Acknowledged,
                    ..
                }
            )
        });
        assert_eq!(freed, believed);
    }
}
