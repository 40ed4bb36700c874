//! Requests as bytes before they are due.
//!
//! A prompt of many tokens takes longer to write out as JSON than a run may be late. Requests
//! whose bodies are known are therefore made into bytes before the run and while the driver has
//! nothing to do; only what depends on an answer (a later turn of a session) is made when it is
//! due.

use std::collections::BTreeMap;

use hyper::Method;
use pb_contract::RequestId;
use pb_contract::plan::PlannedBody;

use crate::driver::{Driver, Part};
use crate::endpoint::Endpoint;
use crate::payload::payload;
use crate::rows::RunContext;
use crate::wire::{Wire, request};

/// Bytes of requests that are kept ready at most.
const MOST_BYTES: usize = 64 << 20;

/// Requests that are ready to be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    endpoint: Endpoint,
    /// Of every request's id: arm and block.
    place: String,
    ready: BTreeMap<RequestId, Ready>,
    /// Bytes in `ready`.
    held: usize,
    /// For each part of the plan how many of its next requests are ready.
    ahead: Vec<(Part, usize)>,
}

#[derive(Debug)]
struct Ready {
    wire: Result<Wire, String>,
    /// Index of the part that it belongs to.
    part: usize,
}

impl Prepared {
    /// Nothing yet, for the plan of `driver`.
    pub(crate) fn new(endpoint: Endpoint, context: &RunContext, driver: &Driver) -> Prepared {
        let arm = context.arm.chars().map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => c,
            _ => '_',
        });
        let arm: String = arm.collect();
        Prepared {
            endpoint,
            place: format!("{arm}/{}", context.block),
            ready: BTreeMap::new(),
            held: 0,
            ahead: driver.parts().map(|part| (part, 0)).collect(),
        }
    }

    /// Makes up to `most` requests ready; whether there was anything to do.
    pub(crate) fn prepare(&mut self, driver: &Driver, most: usize) -> bool {
        let mut made = 0;
        for index in 0..self.ahead.len() {
            while made < most && self.held < MOST_BYTES {
                let (part, ahead) = self.ahead[index];
                let Some((id, body)) = driver.upcoming(part, ahead) else {
                    break;
                };
                let wire = self.make(id, body);
                self.held += wire.as_ref().map_or(0, Wire::len);
                self.ready.insert(id, Ready { wire, part: index });
                self.ahead[index].1 += 1;
                made += 1;
            }
        }
        made > 0
    }

    /// The bytes of a request that is due, made now if they are not ready.
    pub(crate) fn take(&mut self, id: RequestId, body: &PlannedBody) -> Result<Wire, String> {
        let Some(Ready { wire, part }) = self.ready.remove(&id) else {
            return self.make(id, body);
        };
        // Parts are sent in their order, so it was the first of those that are ready.
        self.ahead[part].1 -= 1;
        self.held -= wire.as_ref().map_or(0, Wire::len);
        wire
    }

    fn make(&self, id: RequestId, body: &PlannedBody) -> Result<Wire, String> {
        let (route, bytes) = payload(&self.endpoint, body);
        let id = format!("{}/{id}", self.place);
        let accept = "text/event-stream";
        let made = request(
            &self.endpoint,
            Method::POST,
            route,
            accept,
            bytes,
            Some(&id),
        );
        made.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::Nanos;
    use pb_contract::plan::{ClosedLoop, OpenRequest, Plan};

    use super::*;
    use crate::driver::Action;

    fn body(ids: usize) -> PlannedBody {
        PlannedBody::of_ids("x", vec![7; ids], 2)
    }

    fn bytes(wire: Result<Wire, String>) -> bytes::Bytes {
        match wire.unwrap() {
            Wire::Http1(bytes) => bytes,
            Wire::Http2(_) => panic!("HTTP/1.1 was asked for"),
        }
    }

    #[test]
    fn what_is_ready_is_what_would_be_made_when_due() {
        let second = Nanos::from_secs(1);
        let plan = Plan {
            open: (0..3)
                .map(|id| OpenRequest {
                    id: RequestId(id),
                    offset_ns: Nanos(id),
                    body: body(1 + id as usize),
                })
                .collect(),
            closed: vec![ClosedLoop {
                streams: 2,
                first_id: RequestId(10),
                bodies: (0..5).map(|n| body(20 + n)).collect(),
            }],
            horizon_ns: second,
            drain_ns: second,
            ..Plan::default()
        };
        let mut driver = Driver::new(plan, second).unwrap();
        let endpoint = Endpoint::parse("http://h:1").unwrap();
        let context = RunContext {
            arm: "a b".into(),
            block: 4,
        };
        let mut prepared = Prepared::new(endpoint, &context, &driver);
        let other = |id, body| bytes(prepared_anew(&context, &driver).take(id, body));
        let expected = other(RequestId(11), &body(21));
        assert!(
            expected
                .windows(24)
                .any(|w| w == b"x-request-id: a_b/4/11\r\n")
        );
        assert!(prepared.prepare(&driver, 100));
        // Three of the schedule and one for each slot.
        assert_eq!(prepared.ready.len(), 5);
        assert!(!prepared.prepare(&driver, 100));
        let mut sent = 0;
        for at in [second, second + Nanos(5)] {
            for action in driver.poll(at) {
                if let Action::Send(order) = action {
                    let wire = bytes(prepared.take(order.id, &order.body));
                    let anew = prepared_anew(&context, &driver).take(order.id, &order.body);
                    assert_eq!(wire, bytes(anew));
                    sent += 1;
                }
            }
        }
        assert_eq!((sent, prepared.ready.len(), prepared.held), (5, 0, 0));
        driver.ended(RequestId(10), second + Nanos(6), None);
        assert!(prepared.prepare(&driver, 1));
        assert!(prepared.ready.contains_key(&RequestId(12)));
    }

    fn prepared_anew(context: &RunContext, driver: &Driver) -> Prepared {
        Prepared::new(Endpoint::parse("http://h:1").unwrap(), context, driver)
    }
}
