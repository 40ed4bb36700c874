//! Reading a Prometheus metrics page.
//!
//! Both text formats are read: the older one and OpenMetrics, whose exemplars, units and end mark
//! are passed over. A line that cannot be read is kept apart with its number and the rest of the
//! page still counts, because one odd exporter must not hide the engine's own figures.

use std::fmt;

/// Longest list of unreadable lines that is kept.
const MAX_REJECTED: usize = 32;

/// One value of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name, with the `_bucket`, `_sum`, `_count` or `_total` that it carries.
    pub name: String,
    /// Labels in the order of the page, escapes resolved.
    pub labels: Vec<(String, String)>,
    /// Value; NaN and infinities are values.
    pub value: f64,
}

/// A line that is no sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Line number from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// A metrics page as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// Samples in the order of the page.
    pub samples: Vec<Sample>,
    /// The first lines that could not be read, at most 32 of them.
    pub rejected: Vec<Rejected>,
}

impl Sample {
    /// Value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The line that reads back as this sample.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = is_name(&self.name, true);
        let mut parts = Vec::new();
        if !plain {
            parts.push(quoted(&self.name));
        }
        for (key, value) in &self.labels {
            let key = if is_name(key, false) {
                key.clone()
            } else {
                quoted(key)
            };
            parts.push(format!("{key}={}", quoted(value)));
        }
        if plain {
            f.write_str(&self.name)?;
        }
        if !parts.is_empty() {
            write!(f, "{{{}}}", parts.join(","))?;
        }
        write!(f, " {:?}", self.value)
    }
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace('\n', "\\n"))
}

impl Exposition {
    /// Reads a page; never fails.
    pub fn parse(text: &str) -> Exposition {
        let mut page = Exposition::default();
        for (index, line) in text.split('\n').enumerate() {
            let line = line.trim_matches([' ', '\t', '\r']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match Line(line).sample() {
                Ok(sample) => page.samples.push(sample),
                Err(reason) if page.rejected.len() < MAX_REJECTED => {
                    let line = index + 1;
                    page.rejected.push(Rejected { line, reason });
                }
                Err(_) => {}
            }
        }
        page
    }

    /// The samples of a name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |s| s.name == name)
    }

    /// Number of samples whose name starts with `prefix`.
    pub fn count_prefix(&self, prefix: &str) -> usize {
        let starts = |s: &&Sample| s.name.starts_with(prefix);
        self.samples.iter().filter(starts).count()
    }
}

/// What is left of a line.
struct Line<'a>(&'a str);

impl Line<'_> {
    fn sample(mut self) -> Result<Sample, &'static str> {
        let end = self.0.find(|c: char| c == '{' || c.is_ascii_whitespace());
        let (name, rest) = self.0.split_at(end.ok_or("no value")?);
        self.0 = rest.trim_start();
        let mut name = name.to_owned();
        let mut labels = Vec::new();
        if let Some(inside) = self.0.strip_prefix('{') {
            self.0 = inside;
            self.labels(&mut name, &mut labels)?;
        } else if !is_name(&name, true) {
            return Err("not a metric name");
        }
        if name.is_empty() {
            return Err("no metric name");
        }
        Ok(Sample {
            name,
            labels,
            value: self.value()?,
        })
    }

    /// Reads up to the closing brace. A name that is no plain one stands in the braces, quoted.
    fn labels(
        &mut self,
        name: &mut String,
        labels: &mut Vec<(String, String)>,
    ) -> Result<(), &'static str> {
        if !name.is_empty() && !is_name(name, true) {
            return Err("not a metric name");
        }
        loop {
            self.0 = self.0.trim_start();
            if let Some(rest) = self.0.strip_prefix('}') {
                self.0 = rest;
                return Ok(());
            }
            let quoted_key = self.0.starts_with('"');
            let key = if quoted_key {
                self.quoted()?
            } else {
                self.label_name()?
            };
            self.0 = self.0.trim_start();
            if let Some(rest) = self.0.strip_prefix('=') {
                self.0 = rest.trim_start();
                labels.push((key, self.quoted()?));
            } else if quoted_key && name.is_empty() && labels.is_empty() {
                *name = key;
            } else {
                return Err("a label without a value");
            }
            self.0 = self.0.trim_start();
            match self.0.strip_prefix(',') {
                Some(rest) => self.0 = rest,
                None if self.0.starts_with('}') => {}
                None => return Err("labels not closed"),
            }
        }
    }

    fn label_name(&mut self) -> Result<String, &'static str> {
        let end = self.0.find(|c: char| c == '=' || c.is_ascii_whitespace());
        let (key, rest) = self.0.split_at(end.ok_or("labels not closed")?);
        if !is_name(key, false) {
            return Err("not a label name");
        }
        self.0 = rest;
        Ok(key.to_owned())
    }

    fn quoted(&mut self) -> Result<String, &'static str> {
        let body = self.0.strip_prefix('"').ok_or("a value without quotes")?;
        let mut out = String::new();
        let mut chars = body.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.0 = &body[at + 1..];
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => out.push(c),
                    // Unknown escapes stand for themselves, as Prometheus reads them.
                    Some((_, c)) => out.extend(['\\', c]),
                    None => return Err("quotes not closed"),
                },
                c => out.push(c),
            }
        }
        Err("quotes not closed")
    }

    /// The value; a time stamp and an exemplar behind it are passed over.
    fn value(&self) -> Result<f64, &'static str> {
        let (fields, _exemplar) = self.0.split_once('#').unwrap_or((self.0, ""));
        let mut fields = fields.split_ascii_whitespace();
        let value = fields.next().ok_or("no value")?;
        let value = value.parse().map_err(|_| "the value is not a number")?;
        if fields.next().is_some_and(|at| at.parse::<f64>().is_err()) {
            return Err("the time stamp is not a number");
        }
        match fields.next() {
            None => Ok(value),
            Some(_) => Err("something behind the time stamp"),
        }
    }
}

/// Whether `text` is a plain name; metric names may have colons, label names may not.
fn is_name(text: &str, colons: bool) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    let digit = text.starts_with(|c: char| c.is_ascii_digit());
    !text.is_empty() && !digit && text.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Sample {
        let page = Exposition::parse(line);
        assert_eq!(page.rejected, [], "{line}");
        page.samples[0].clone()
    }

    fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn samples_as_exporters_write_them() {
        type Labels = [(&'static str, &'static str)];
        let cases: [(&str, &str, &Labels, f64); 8] = [
            ("up 1", "up", &[], 1.0),
            ("a:b{x=\"1\"} 2.5e+09", "a:b", &[("x", "1")], 2.5e9),
            ("a{} 3 1700000000000\r", "a", &[], 3.0),
            (
                "a { x = \"1\" , y=\"2\", } 4",
                "a",
                &[("x", "1"), ("y", "2")],
                4.0,
            ),
            (
                r#"a{p="C:\\d\"q\"\nz"} 5"#,
                "a",
                &[("p", "C:\\d\"q\"\nz")],
                5.0,
            ),
            ("a{x=\"}, #\"} 6", "a", &[("x", "}, #")], 6.0),
            (
                "a{le=\"1\"} 7 # {id=\"t\"} 0.4 1.5",
                "a",
                &[("le", "1")],
                7.0,
            ),
            ("{\"odd.name\",x=\"1\"} 8", "odd.name", &[("x", "1")], 8.0),
        ];
        for (line, name, expected, value) in cases {
            let sample = one(line);
            assert_eq!(sample.name, name, "{line}");
            assert_eq!(sample.labels, labels(expected), "{line}");
            assert_eq!(sample.value, value, "{line}");
        }
        assert!(one("a NaN").value.is_nan());
        assert_eq!(one("a +Inf").value, f64::INFINITY);
        assert_eq!(one("a -Inf").value, f64::NEG_INFINITY);
    }

    #[test]
    fn a_bad_line_is_reported_and_hides_nothing() {
        let page = Exposition::parse(
            "# HELP a text\n# TYPE a counter\n# UNIT a seconds\na{x=\"1} 2\n9a 1\na\na x\n\
             a{x} 1\na 1 2 3\na 1 x\nb 7\n# EOF\n",
        );
        let lines: Vec<usize> = page.rejected.iter().map(|r| r.line).collect();
        assert_eq!(lines, [4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(page.samples, [one("b 7")]);
    }

    #[test]
    fn the_list_of_bad_lines_is_bounded() {
        let page = Exposition::parse(&"!\n".repeat(1000));
        assert_eq!(page.rejected.len(), MAX_REJECTED);
    }
}
