//! One file a verb.

pub(crate) mod bench;
pub(crate) mod calc;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod diagnose;
pub(crate) mod engine;
pub(crate) mod gate;
pub(crate) mod golden;
pub(crate) mod guard;
pub(crate) mod kernels;
pub(crate) mod leak;
pub(crate) mod merge;
pub(crate) mod mock;
pub(crate) mod model;
pub(crate) mod quickstart;
pub(crate) mod report;
pub(crate) mod router;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod suite;
pub(crate) mod trace;
pub(crate) mod validate;
pub(crate) mod written;
