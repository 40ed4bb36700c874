//! What a transfer takes on a link of a known rate and delay, in virtual time, against arithmetic.
//!
//! The machines are the real ones; link and prefill are exact. `tests/netns` measures the same
//! quantities on shaped links of the kernel.

use std::collections::BTreeMap;

use pb_contract::{BlockId, Nanos, RequestId};
use pb_transfer::{
    DataHead, Defect, Granularity, Lend, Message, Mode, Order, Posted, Sink, SinkAction,
    SinkConfig, Source, SourceAction, SourceConfig, Span, TransferId,
};

/// Times of one transfer, ns.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    /// From the first layer's start to the start of the last token's decode.
    first_token: u64,
    /// From the end of the prefill to the sink's start.
    exposed: u64,
    /// From the end of the prefill to the acknowledgement, as the row has it.
    row_exposed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// Bytes in a microsecond: 12,500 are 100 Gb/s.
    bytes_per_us: u64,
    delay_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Prompt {
    blocks: u32,
    layers: u32,
    cell_bytes: u64,
    /// Computing a layer of the whole prompt.
    layer_ns: u64,
    /// What sealing and posting a layer by itself takes from the computing thread.
    seal_ns: u64,
}

enum Event {
    Computed(u32),
    ToSource(Message),
    ToSink(Message),
    Cells(DataHead),
    Sent(TransferId),
}

struct World {
    link: Link,
    prompt: Prompt,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    link_free: u64,
    source: Source,
    sink: Sink,
    started: Option<u64>,
}

impl World {
    fn new(link: Link, prompt: Prompt, frame_cells: u64) -> World {
        let source = SourceConfig {
            layers: prompt.layers,
            order: Order::LayerMajor,
            lease: Nanos::from_secs(3_600),
            frame_cells,
            frames_in_flight: 4,
            defect: Defect::None,
        };
        let sink = SinkConfig {
            layers: prompt.layers,
            source_block_size: 16,
            blocks: prompt.blocks,
            transfers: 1,
            window_cells: 64,
            stall: Nanos::from_secs(3_600),
            retries: 0,
            defect: Defect::None,
        };
        World {
            link,
            prompt,
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            link_free: 0,
            source: Source::new(source, 1),
            sink: Sink::new(sink),
            started: None,
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    /// The prompt is offered, and computed once the sink has asked for it.
    fn run(mut self, granularity: Granularity) -> Times {
        let Prompt { blocks, layers, .. } = self.prompt;
        let id = self.source.lend(
            Nanos(0),
            Lend {
                request: RequestId(1),
                tokens: 16 * u64::from(blocks),
                blocks: (0..blocks).map(BlockId).collect(),
                mode: Mode::Push,
                granularity,
            },
        );
        let begin = 10 * self.link.delay_ns + 1_000;
        let alone = if granularity == Granularity::Layer {
            self.prompt.seal_ns
        } else {
            0
        };
        let pace = self.prompt.layer_ns + alone;
        let prefill_end = begin + u64::from(layers) * pace;
        for layer in 0..layers {
            self.at(begin + u64::from(layer + 1) * pace, Event::Computed(layer));
        }
        self.settle();
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.handle(id, event);
            self.settle();
        }
        let [row] = self.source.take_rows().try_into().expect("one row");
        let started = self.started.expect("a start");
        assert_eq!(
            row.bytes,
            u64::from(blocks * layers) * self.prompt.cell_bytes
        );
        Times {
            first_token: started - begin,
            exposed: started - prefill_end,
            row_exposed: row.exposed_ns.expect("a prefill that ended"),
        }
    }

    fn handle(&mut self, id: TransferId, event: Event) {
        let now = Nanos(self.now);
        match event {
            Event::Computed(layer) => {
                let (blocks, layers) = (self.prompt.blocks, self.prompt.layers);
                if layer + 1 == layers {
                    self.source.prefill_ended(now, id);
                }
                let span = Span {
                    block: 0,
                    blocks,
                    layer,
                    layers: 1,
                };
                self.source.seal(id, span, &vec![0; blocks as usize]);
            }
            Event::ToSource(message) => self.source.on_message(now, &message).unwrap(),
            Event::ToSink(message) => self.sink.on_message(now, &message).unwrap(),
            Event::Cells(head) => {
                assert!(self.sink.admit(head.id, head.span).is_some());
                let good = vec![true; head.sums.len()];
                self.sink.arrived(now, head.id, head.span, &good);
            }
            Event::Sent(id) => self.source.sent(now, id, 0),
        }
    }

    /// Frames share the link one after the other; messages are too short to take time on it.
    fn settle(&mut self) {
        let delay = self.link.delay_ns;
        while let Some(action) = self.source.next_action() {
            match action {
                SourceAction::Send(message) => self.at(self.now + delay, Event::ToSink(message)),
                SourceAction::Post { id, span } => {
                    let bytes = span.cells() * self.prompt.cell_bytes;
                    let posted = Posted {
                        bytes,
                        ..Posted::default()
                    };
                    self.source.posted(id, span, posted);
                    let takes = (bytes * 1_000).div_ceil(self.link.bytes_per_us);
                    self.link_free = self.link_free.max(self.now) + takes;
                    let sums = self.source.sums(id, span).unwrap();
                    let head = DataHead { id, span, sums };
                    self.at(self.link_free, Event::Sent(id));
                    self.at(self.link_free + delay, Event::Cells(head));
                }
                SourceAction::Free { .. } => {}
            }
        }
        while let Some(action) = self.sink.next_action() {
            match action {
                SinkAction::Send(message) => self.at(self.now + delay, Event::ToSource(message)),
                SinkAction::Reserve(offer) => {
                    let blocks = (0..offer.blocks).map(BlockId).collect();
                    assert!(self.sink.reserved(Nanos(self.now), offer.id, blocks));
                }
                SinkAction::Place { id } => self.sink.placed(id, Ok(())),
                SinkAction::Start { .. } => self.started = Some(self.now),
                SinkAction::Fail { cause, .. } => panic!("{}", cause.name()),
            }
        }
    }
}

fn times(link: Link, prompt: Prompt, granularity: Granularity) -> Times {
    World::new(link, prompt, 64).run(granularity)
}

/// 2048 tokens of a model with 32 layers and 8 KV heads of 128 in f16 are 256 MiB.
const MIB_256: Prompt = Prompt {
    blocks: 128,
    layers: 32,
    cell_bytes: 65_536,
    layer_ns: 4_000_000,
    seal_ns: 0,
};

/// Frames end on whole nanoseconds.
fn close(found: u64, expected: u64) {
    let frames = 128 * 32;
    assert!(
        (expected..expected + frames).contains(&found),
        "{found} ns, expected {expected} ns"
    );
}

#[test]
fn bulk_takes_the_payload_over_the_bandwidth_and_the_delay() {
    // By hand: 268,435,456 B are 2,147,483,648 bits.
    for (bytes_per_us, payload_ns) in [
        (125, 2_147_483_648),
        (1_250, 214_748_364),
        (12_500, 21_474_836),
    ] {
        for delay_ns in [0, 5_000, 2_000_000] {
            let link = Link {
                bytes_per_us,
                delay_ns,
            };
            let found = times(link, MIB_256, Granularity::Bulk);
            close(found.exposed, payload_ns + delay_ns);
            close(found.row_exposed, payload_ns + 2 * delay_ns);
        }
    }
}

#[test]
fn streaming_exposes_the_larger_of_what_is_left_and_one_layer() {
    let delay_ns = 10_000;
    // ns of a layer's slice at 125, 1,250, 12,500 bytes per microsecond: 8 MiB / rate.
    for (bytes_per_us, slice_ns) in [(125, 67_108_864), (1_250, 6_710_887), (12_500, 671_089)] {
        for layer_ns in [100_000, 671_089, 4_000_000, 6_710_887, 40_000_000] {
            let link = Link {
                bytes_per_us,
                delay_ns,
            };
            let prompt = Prompt {
                layer_ns,
                ..MIB_256
            };
            let found = times(link, prompt, Granularity::Layer);
            // All slices but one may hide behind the 31 layers that are computed meanwhile.
            let left = (32 * slice_ns as i64 - 31 * layer_ns as i64).max(slice_ns as i64) as u64;
            let low = left.saturating_sub(128);
            assert!(
                (low..left + 4_096).contains(&(found.exposed - delay_ns)),
                "{bytes_per_us} {layer_ns}: {found:?}, expected {left} ns"
            );
        }
    }
}

#[test]
fn streaming_pays_from_the_prompt_on_that_the_arithmetic_says() {
    // 2 us per token and layer, as an 8B model on a large accelerator; 25 us to seal and post.
    let seal_ns = 25_000;
    for bytes_per_us in [125, 1_250, 12_500, 50_000] {
        let link = Link {
            bytes_per_us,
            delay_ns: 10_000,
        };
        let pays = |blocks: u32| {
            let prompt = Prompt {
                blocks,
                layer_ns: u64::from(blocks) * 16 * 2_000,
                seal_ns,
                ..MIB_256
            };
            let [bulk, layer] = [Granularity::Bulk, Granularity::Layer]
                .map(|granularity| times(link, prompt, granularity).first_token);
            layer < bulk
        };
        // By hand: a layer of `b` blocks takes s = b * 65,536 B / rate on the link and
        // c = b * 32 us to compute. Bulk costs 32 s after 32 c; streaming 32 (c + 25 us), then
        // the larger of s and 32 s - 31 (c + 25 us).
        let expected = (1..400).find(|b| {
            let (s, c) = (b * 65_536_000 / bytes_per_us as i64, b * 32_000);
            let paced = c + seal_ns as i64;
            32 * paced + s.max(32 * s - 31 * paced) < 32 * c + 32 * s
        });
        let expected = expected.expect("a crossover") as u32;
        assert!(pays(expected), "{bytes_per_us}: {expected} blocks");
        assert!(
            expected == 1 || !pays(expected - 1),
            "{bytes_per_us}: fewer than {expected} blocks"
        );
    }
}
