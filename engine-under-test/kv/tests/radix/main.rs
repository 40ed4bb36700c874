//! The radix tree cache against SGLang's own answers, its public fault reports, a naive oracle
//! and planted faults.

mod evicting;
mod faults;
mod golden;
mod locking;
mod naive;
mod reports;
mod sharing;
mod short;
mod world;
