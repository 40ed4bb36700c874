//! The client's record of a calibration against the server's. Pure.
//!
//! Both are instants of the machine's monotonic clock, so one can be subtracted from the other.
//! Requests are told apart by the `x-request-id` that the client sends and the server logs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus, TokenRow};
use pb_load::Record;
use serde::Deserialize;

/// One line of the server's log.
#[derive(Debug, Deserialize)]
struct Line {
    x_request_id: String,
    due_ns: Option<u64>,
    written_ns: Option<u64>,
    tokens: Option<u32>,
}

/// What the server sent: for each request, the due and written instants of its writes with
/// tokens, in order.
pub(crate) type Truth = BTreeMap<RequestId, Vec<(Nanos, Nanos)>>;

/// Reads the server's log. Requests that are not this client's are left out.
///
/// # Errors
/// It has other columns, or what is no number in them.
pub(crate) fn read_log(csv: &str) -> Result<Truth> {
    let mut requests = Truth::new();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    for line in reader.deserialize() {
        let line: Line = line.context("the ground-truth server's log")?;
        // ARM/BLOCK/NUMBER
        let number = line.x_request_id.rsplit('/').next();
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        let request = requests.entry(RequestId(number)).or_default();
        let instants = line.due_ns.zip(line.written_ns);
        if let (Some((due, written)), Some(1..)) = (instants, line.tokens) {
            request.push((Nanos(due), Nanos(written)));
        }
    }
    Ok(requests)
}

/// The differences, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Errors {
    /// Requests that both know alike.
    pub(crate) compared: u64,
    /// First byte sent after the intended arrival, of requests that are due alone.
    pub(crate) lag: Vec<u64>,
    /// The same of requests that share their instant with others: somebody must be last.
    pub(crate) spread: Vec<u64>,
    /// Event read after it was written.
    pub(crate) read: Vec<u64>,
    /// The same of first tokens.
    pub(crate) ttft: Vec<u64>,
    /// Client's gap minus the server's.
    pub(crate) itl: Vec<i64>,
    /// Written after it was due.
    pub(crate) late: Vec<u64>,
}

impl Errors {
    /// Compares the requests that ended well with the server's log.
    pub(crate) fn of(records: &[Record], truth: &Truth) -> Errors {
        let mut errors = Errors::default();
        errors.lags(records);
        for record in records {
            if let Some(writes) = truth.get(&record.row.request) {
                errors.pair(&record.row, &record.tokens, writes);
            }
        }
        errors
    }

    fn lags(&mut self, records: &[Record]) {
        let mut due: BTreeMap<Nanos, Vec<u64>> = BTreeMap::new();
        for row in records.iter().map(|record| &record.row) {
            if let Some(sent) = row.sent_ns {
                let lag = sent.saturating_sub(row.intended_ns).0;
                due.entry(row.intended_ns).or_default().push(lag);
            }
        }
        for lags in due.into_values() {
            match lags.len() {
                1 => self.lag.extend(lags),
                _ => self.spread.extend(lags),
            }
        }
    }

    fn pair(&mut self, row: &RequestRow, tokens: &[TokenRow], writes: &[(Nanos, Nanos)]) {
        let same = tokens.len() == writes.len() && !tokens.is_empty();
        if row.status != RequestStatus::Ok || !same {
            return;
        }
        self.compared += 1;
        for (event, (token, (due, written))) in tokens.iter().zip(writes).enumerate() {
            let error = token.at_ns.saturating_sub(*written).0;
            if event == 0 {
                self.ttft.push(error);
            }
            self.read.push(error);
            self.late.push(written.saturating_sub(*due).0);
        }
        let client = tokens.windows(2).map(|pair| (pair[0].at_ns, pair[1].at_ns));
        let server = writes.windows(2).map(|pair| (pair[0].1, pair[1].1));
        let gap = |(from, to): (Nanos, Nanos)| to.saturating_sub(from).0 as i64;
        let pairs = client.zip(server);
        self.itl
            .extend(pairs.map(|(ours, theirs)| gap(ours) - gap(theirs)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns that are read, and one that is not, of two requests and a foreign one.
    const LOG: &str = "request,x_request_id,path,due_ns,written_ns,tokens\n\
                       0,calibration/0/7,/v1/completions,1100,1110,0\n\
                       0,calibration/0/7,/v1/completions,1500,1520,1\n\
                       0,calibration/0/7,/v1/completions,1600,1605,1\n\
                       0,calibration/0/7,/v1/completions,1605,1606,0\n\
                       1,calibration/0/8,/v1/completions,,,\n\
                       2,,/v1/completions,1,1,1\n";

    fn record(id: u64, (due, sent): (u64, u64), tokens: &[u64]) -> Record {
        let row = serde_json::json!({
            "arm": "a", "block": 0, "request": id, "class": "x", "intended_ns": due,
            "sent_ns": sent, "status": "ok", "prompt_tokens_planned": 1, "max_tokens": 2,
            "streamed_tokens": tokens.len(),
        });
        let token = |&at: &u64| TokenRow {
            arm: "a".into(),
            block: 0,
            request: RequestId(id),
            event: 0,
            at_ns: Nanos(at),
            tokens: 1,
        };
        Record {
            row: serde_json::from_value(row).unwrap(),
            tokens: tokens.iter().map(token).collect(),
        }
    }

    #[test]
    fn the_log_is_read_by_its_columns() {
        let writes = vec![(Nanos(1500), Nanos(1520)), (Nanos(1600), Nanos(1605))];
        let expected = [(RequestId(7), writes), (RequestId(8), vec![])];
        assert_eq!(read_log(LOG).unwrap(), expected.into());
        let error = read_log("x_request_id,tokens\na/0/0,x\n").unwrap_err();
        assert!(format!("{error:#}").contains("invalid digit"), "{error:#}");
        assert!(read_log("request\n0\n").is_err(), "an id is needed");
        assert_eq!(read_log("").unwrap(), Truth::new());
    }

    /// Worked out by hand: due at 1000, sent at 1030; the first token written at 1520, 20 late,
    /// and read at 1590, the second one written at 1605 and read at 1625.
    #[test]
    fn every_error_is_the_difference_that_it_says() {
        let records = [record(7, (1000, 1030), &[1590, 1625])];
        let errors = Errors::of(&records, &read_log(LOG).unwrap());
        assert_eq!((errors.compared, errors.lag.as_slice()), (1, &[30][..]));
        assert_eq!((errors.read, errors.ttft), (vec![70, 20], vec![70]));
        // Gaps of 35 and 85: the client saw the second token less late than the first.
        assert_eq!(errors.itl, [-50]);
        assert_eq!(errors.late, [20, 5]);
    }

    #[test]
    fn what_does_not_fit_is_not_compared() {
        let truth = read_log(LOG).unwrap();
        // Another number of events; a request that failed; one that the server never saw.
        let fewer = record(7, (1000, 1000), &[1590]);
        let mut failed = record(7, (1000, 1000), &[1590, 1625]);
        failed.row.status = RequestStatus::Truncated;
        let unknown = record(9, (1000, 1000), &[1590, 1625]);
        let nothing = record(8, (1000, 1000), &[]);
        let errors = Errors::of(&[fewer, failed, unknown, nothing], &truth);
        assert_eq!((errors.compared, errors.read.len()), (0, 0));
        assert_eq!(errors.spread.len(), 4, "they were sent all the same");
    }

    #[test]
    fn requests_due_together_are_a_population_of_their_own() {
        let records = [
            record(0, (1000, 1001), &[1300]),
            record(1, (1000, 1040), &[1300]),
            record(2, (1500, 1507), &[1600]),
        ];
        let errors = Errors::of(&records, &Truth::new());
        assert_eq!((errors.spread, errors.lag), (vec![1, 40], vec![7]));
    }
}
