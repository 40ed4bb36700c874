//! CSV files with lengths and arrivals. Columns are found by name, because later editions of a
//! file insert some.

use crate::trace::error::{Place, TraceError};
use crate::trace::formats::json::MAX_TOKENS;
use crate::trace::formats::{FileRow, FileTime, Found, RecordParser};
use crate::trace::time::{Decimal, datetime_ns};
use crate::trace::{RowTurn, TraceRow};

/// The families of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Azure,
    BurstGpt,
    Simulator,
    Lengths,
}

/// Names of a dialect's columns, in lower case and without anything but letters and digits.
struct Names {
    time: &'static [&'static str],
    time_needed: bool,
    input: &'static [&'static str],
    output: &'static [&'static str],
}

impl Dialect {
    const ALL: [Dialect; 4] = [
        Dialect::Azure,
        Dialect::BurstGpt,
        Dialect::Simulator,
        Dialect::Lengths,
    ];

    fn names(self) -> Names {
        match self {
            Dialect::Azure => Names {
                time: &["timestamp"],
                time_needed: true,
                input: &["contexttokens"],
                output: &["generatedtokens"],
            },
            Dialect::BurstGpt => Names {
                time: &["timestamp"],
                time_needed: true,
                input: &["requesttokens"],
                output: &["responsetokens"],
            },
            Dialect::Simulator => Names {
                time: &["arrivedat", "arrivaltime", "arrivaltimestamp"],
                time_needed: false,
                input: &["numprefilltokens", "promptsize"],
                output: &["numdecodetokens", "tokensize"],
            },
            Dialect::Lengths => Names {
                time: &["timestampms"],
                time_needed: true,
                input: &["inputlength"],
                output: &["outputlength"],
            },
        }
    }
}

/// The dialect of a header line, if it is one.
pub(crate) fn dialect_of(header: &str) -> Option<Dialect> {
    let names: Vec<String> = split(header).iter().map(|name| plain(name)).collect();
    Dialect::ALL.into_iter().find(|dialect| {
        let wanted = dialect.names();
        let has = |aliases: &[&str]| names.iter().any(|name| aliases.contains(&name.as_str()));
        has(wanted.input) && has(wanted.output) && (!wanted.time_needed || has(wanted.time))
    })
}

/// Letters and digits of a column's name in lower case.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

/// The fields of a line; quotes may hold commas.
fn split(line: &str) -> Vec<&str> {
    if !line.contains('"') {
        return line.split(',').map(str::trim).collect();
    }
    let mut quoted = false;
    let fields = line.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    fields.map(|field| field.trim().trim_matches('"')).collect()
}

/// A column: its number, and its name as the file writes it.
#[derive(Clone, Debug)]
struct Column {
    index: usize,
    name: String,
}

/// Where the columns are.
#[derive(Clone, Debug)]
struct Columns {
    count: usize,
    time: Option<Column>,
    input: Column,
    output: Column,
    session: Option<Column>,
    images: Option<Column>,
    batch: Option<Column>,
}

/// Parser of one dialect.
#[derive(Debug)]
pub(crate) struct CsvParser {
    dialect: Dialect,
    columns: Option<Columns>,
}

impl CsvParser {
    pub(crate) fn new(dialect: Dialect) -> Self {
        CsvParser {
            dialect,
            columns: None,
        }
    }

    fn header(&self, record: &str, place: &Place) -> Result<Columns, TraceError> {
        let names = split(record);
        let find = |aliases: &[&str]| {
            let index = names
                .iter()
                .position(|name| aliases.contains(&plain(name).as_str()))?;
            Some(Column {
                index,
                name: names[index].to_owned(),
            })
        };
        let wanted = self.dialect.names();
        let missing = |aliases: &[&str]| {
            let message = format!(
                "no column {} in the header `{record}`",
                aliases.join(" or ")
            );
            TraceError::line(place, message)
        };
        let time = find(wanted.time);
        if time.is_none() && wanted.time_needed {
            return Err(missing(wanted.time));
        }
        Ok(Columns {
            count: names.len(),
            time,
            input: find(wanted.input).ok_or_else(|| missing(wanted.input))?,
            output: find(wanted.output).ok_or_else(|| missing(wanted.output))?,
            session: find(&["sessionid"]),
            images: find(&["numimages"]),
            batch: find(&["batchsize"]),
        })
    }

    fn row(&self, columns: &Columns, record: &str, place: &Place) -> Result<Found, TraceError> {
        let fields = split(record);
        if fields.len() != columns.count {
            let message = format!(
                "{} fields where the header has {}; is the line cut off?",
                fields.len(),
                columns.count
            );
            return Err(TraceError::line(place, message));
        }
        let tokens = |column: &Column| tokens(column, fields[column.index], place);
        let optional = |column: &Option<Column>| column.as_ref().map(tokens).transpose();
        let mut found = Found::default();
        if optional(&columns.images)?.is_some_and(|images| images > 0) {
            found.dropped.push("images");
            return Ok(found);
        }
        if let (Some(column), Some(size)) = (&columns.batch, optional(&columns.batch)?)
            && size != 1
        {
            let fix = "a row must be one request: write one row a request";
            return Err(TraceError::value(place, &column.name, size, fix));
        }
        let (input_tokens, output_tokens) = (tokens(&columns.input)?, tokens(&columns.output)?);
        if input_tokens == 0 {
            found.dropped.push("empty_input");
            return Ok(found);
        }
        if self.dialect == Dialect::BurstGpt && output_tokens == 0 {
            found.dropped.push("failed");
            return Ok(found);
        }
        let at = match &columns.time {
            None => FileTime::Absent,
            Some(column) => self.time(column, fields[column.index], place)?,
        };
        let session = columns.session.as_ref().map(|column| fields[column.index]);
        let turn = session
            .filter(|session| !session.is_empty())
            .map(|session| RowTurn {
                session: session.to_owned(),
                ..RowTurn::default()
            });
        let row = TraceRow {
            input_tokens,
            output_tokens,
            turn,
            ..TraceRow::default()
        };
        found.rows.push(FileRow { at, row });
        Ok(found)
    }

    fn time(&self, column: &Column, text: &str, place: &Place) -> Result<FileTime, TraceError> {
        let (time, fix) = match self.dialect {
            Dialect::Azure => (
                datetime_ns(text).map(FileTime::Instant),
                "must be a date and time such as 2023-11-16 18:15:46.6805900",
            ),
            _ => (
                Decimal::parse(text).map(FileTime::Units),
                "must be a time, a number from 0",
            ),
        };
        time.ok_or_else(|| TraceError::value(place, &column.name, text, fix))
    }
}

impl RecordParser for CsvParser {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        match &self.columns {
            Some(columns) => self.row(columns, record, place),
            None => {
                self.columns = Some(self.header(record, place)?);
                Ok(Found::default())
            }
        }
    }
}

/// A number of tokens; `374.0` counts as 374.
fn tokens(column: &Column, text: &str, place: &Place) -> Result<usize, TraceError> {
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|b| b == b'0') => whole,
        _ => text,
    };
    match whole.parse().ok().filter(|&n: &u64| n <= MAX_TOKENS) {
        Some(n) => Ok(n as usize),
        None => {
            let fix = format!("must be a whole number from 0 to {MAX_TOKENS}");
            Err(TraceError::value(place, &column.name, text, fix))
        }
    }
}
