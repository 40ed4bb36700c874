//! The target against servers of every kind. A number in a test's name counts public bug reports
//! about load generators; the test's comment names them.

mod cold;
mod detect;
mod fake;
mod fuzz;
mod hits;
mod live;
mod recorded;
mod scrape;
mod warm;
