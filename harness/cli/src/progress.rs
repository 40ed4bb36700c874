//! Progress for people, on standard error.
//!
//! On a terminal a spinner shows what is being done and for how long; elsewhere one line is
//! written when a phase begins, so that a log stays readable.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::console;

/// One phase after another.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Progress {
    /// A display that fits where standard error goes.
    pub(crate) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Progress {
                bar: None,
                quiet: false,
            };
        }
        let bar = ProgressBar::new_spinner();
        // OK because the template is a constant with no unknown key.
        let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}").unwrap();
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress {
            bar: Some(bar),
            quiet: false,
        }
    }

    /// A display that shows nothing: for work whose caller tells how far it is.
    pub(crate) fn quiet() -> Self {
        Progress {
            bar: None,
            quiet: true,
        }
    }

    /// Begins a phase.
    pub(crate) fn phase(&self, message: impl Into<String>) {
        let message = message.into();
        match &self.bar {
            // One line of the screen, whatever is in it.
            Some(bar) => bar.set_message(pb_record::visible(&message)),
            None if self.quiet => {}
            None => console::say(message),
        }
    }

    /// Says something that stays on the screen.
    pub(crate) fn note(&self, message: impl AsRef<str>) {
        match &self.bar {
            Some(bar) => bar.println(console::fitted(&console::safe(message.as_ref()))),
            None if self.quiet => {}
            None => console::say(message),
        }
    }

    /// Takes the display away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
