//! What all threads share: the cache, the counters, the log and the places in service.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pb_contract::{Clock, Nanos, TokenId, WallClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::{self, Answer};
use crate::ask::Ask;
use crate::cache::PrefixCache;
use crate::fault::FaultKind;
use crate::log::{Ending, Log, LoggedRequest, LoggedWrite};
use crate::log_file::LogFile;
use crate::metrics::{Gauges, Metrics};
use crate::options::{MockOptions, Persona, ResetStyle};
use crate::script::Rule;
use crate::slots::{Slot, Slots};

/// The state of the server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: MockOptions,
    /// Where the log goes as requests end.
    log_file: Option<LogFile>,
    slots: Arc<Semaphore>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Generation requests so far.
    requests: u64,
    /// Uses of each rule of the script.
    rule_uses: Vec<u32>,
    /// Uses of each recording.
    recording_uses: Vec<u64>,
    resets_refused: u32,
    running: usize,
    waiting: usize,
    held_blocks: usize,
    cache: PrefixCache,
    slots: Slots,
    metrics: Metrics,
    log: Log,
}

/// A generation request that is being served.
#[derive(Debug)]
pub(crate) struct Job {
    number: u64,
    ask: Ask,
    arrival: Arrival,
    cached: usize,
    /// Zero of the schedule.
    pub(crate) start: Nanos,
    /// What to send; taken by who sends it.
    pub(crate) answer: Option<Answer>,
    status: u16,
    finish: Option<String>,
    /// Tokens of the generator for each choice, which the cache keeps.
    output_tokens: u64,
    held_blocks: usize,
    /// The slot of llama.cpp's server that serves it.
    slot: Option<usize>,
    /// The place in service; requests that are refused need none.
    place: Option<OwnedSemaphorePermit>,
}

/// Where a request came from.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// When its first byte was read.
    pub(crate) first_byte: Nanos,
    pub(crate) x_request_id: Option<String>,
    /// Class for the script, from `x-mock-class`.
    pub(crate) class: Option<String>,
}

impl Arrival {
    /// An arrival.
    pub(crate) fn new(
        first_byte: Nanos,
        x_request_id: Option<String>,
        class: Option<String>,
    ) -> Arrival {
        Arrival {
            first_byte,
            x_request_id,
            class,
        }
    }
}

/// Counts a request as waiting for as long as it lives.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.lock().waiting += 1;
        Waiting(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Shared {
    pub(crate) fn new(options: MockOptions, log_file: Option<LogFile>) -> Shared {
        let rules = options.script.as_ref().map_or(0, |s| s.rules.len());
        let mut slots = options.max_concurrency.unwrap_or(Semaphore::MAX_PERMITS);
        if options.persona != Persona::Vllm {
            slots = slots.min(slots_of(&options));
        }
        Shared {
            log_file,
            slots: Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS))),
            inner: Mutex::new(Inner {
                requests: 0,
                rule_uses: vec![0; rules],
                recording_uses: vec![0; options.recordings.len()],
                resets_refused: 0,
                running: 0,
                waiting: 0,
                held_blocks: 0,
                cache: PrefixCache::new(options.cache.clone()),
                slots: Slots::new(slots_of(&options)),
                metrics: Metrics::new(),
                log: Log::default(),
            }),
            options,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The state is consistent between any two statements that change it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next recording of a path, each in its turn.
    pub(crate) fn recording(&self, path: &str) -> Option<Answer> {
        let mut inner = self.lock();
        let fits = self.options.recordings.iter().enumerate();
        let (i, recording) = fits
            .filter(|(_, recording)| recording.path == path)
            .min_by_key(|(i, _)| inner.recording_uses[*i])?;
        inner.recording_uses[i] += 1;
        Some(Answer::recording(recording))
    }

    /// Gives a request its number, waits for its turn and decides the answer.
    pub(crate) async fn admit(&self, ask: Ask, arrival: Arrival) -> Job {
        let (number, rule, fault) = self.choose(&ask, &arrival);
        let refused = matches!(fault, Some(FaultKind::Status { .. }))
            || rule.as_ref().is_some_and(|rule| rule.body.is_some());
        let mut start = arrival.first_byte;
        let mut place = None;
        if !refused {
            place = match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(place) => Some(place),
                Err(_) => {
                    let _waiting = Waiting::new(self);
                    let turn = Arc::clone(&self.slots).acquire_owned().await;
                    start = WallClock.now();
                    // Closed only when the server is gone.
                    turn.ok()
                }
            };
        }
        let mut job = Job {
            number,
            cached: 0,
            start,
            answer: None,
            status: 0,
            finish: None,
            output_tokens: 0,
            held_blocks: 0,
            slot: None,
            place,
            ask,
            arrival,
        };
        if !refused {
            self.begin(&mut job);
        }
        let (ask, cached) = (&job.ask, job.cached);
        let (rule, fault) = (rule.as_ref(), fault.as_ref());
        let answer = answer::build(ask, &self.options, number, cached, rule, fault);
        job.status = answer.head.as_ref().map_or(0, |head| head.status);
        job.finish = answer.finish.clone();
        if rule.is_none() {
            job.output_tokens = answer.tokens() / u64::from(job.ask.choices);
        }
        job.answer = Some(answer);
        job
    }

    fn choose(&self, ask: &Ask, arrival: &Arrival) -> (u64, Option<Rule>, Option<FaultKind>) {
        let mut inner = self.lock();
        let number = inner.requests;
        inner.requests += 1;
        let fault = self.options.faults.iter().find(|fault| fault.hits(number));
        let class = arrival.class.as_deref().or(ask.class.as_deref());
        let rules = self.options.script.iter().flat_map(|script| &script.rules);
        let rule = rules.enumerate().find(|(i, rule)| {
            let left = rule.times.is_none_or(|times| inner.rule_uses[*i] < times);
            left && rule.fits(ask.api.path(), &ask.model, class)
        });
        let rule = rule.map(|(i, rule)| {
            inner.rule_uses[i] += 1;
            rule.clone()
        });
        (number, rule, fault.map(|fault| fault.kind.clone()))
    }

    /// Looks the prompt up, puts it into the cache and counts the request as running.
    fn begin(&self, job: &mut Job) {
        let mut inner = self.lock();
        let salt = job.ask.salt.as_deref();
        if self.options.persona == Persona::Vllm {
            job.cached = inner.cache.hit(&job.ask.prompt, salt);
            inner.cache.insert(&job.ask.prompt, salt);
        } else {
            let reuse = job.ask.cache_prompt && self.options.cache.enabled;
            let slot = inner.slots.take(&job.ask.prompt, reuse, job.number);
            (job.slot, job.cached) = (slot.map(|slot| slot.0), slot.map_or(0, |slot| slot.1));
        }
        inner.metrics.looked_up(job.ask.prompt.len(), job.cached);
        let output = job.ask.max_tokens.unwrap_or(1) as usize;
        let tokens = job.ask.prompt.len() + output;
        job.held_blocks = tokens.div_ceil(self.options.cache.block_size);
        inner.held_blocks += job.held_blocks;
        inner.running += 1;
    }

    /// The tokens that the generator made for a request.
    fn output(&self, job: &Job) -> Vec<TokenId> {
        let tokenizer = self.options.tokenizer;
        let text = (0..job.output_tokens).map(|n| tokenizer.generated(n as u32));
        tokenizer.encode(&text.collect::<String>())
    }

    /// Takes note of a request that has ended and gives its place to the next.
    pub(crate) fn finish(&self, job: Job, writes: Vec<LoggedWrite>, ending: Ending) {
        let complete = ending == Ending::Complete;
        let output = match complete {
            true => self.output(&job),
            false => Vec::new(),
        };
        let request = LoggedRequest {
            request: job.number,
            x_request_id: job.arrival.x_request_id,
            path: job.ask.api.path().into(),
            model: job.ask.model,
            status: if writes.is_empty() { 0 } else { job.status },
            prompt_tokens: job.ask.prompt.len(),
            cached_tokens: job.cached,
            first_byte_ns: job.arrival.first_byte,
            start_ns: job.start,
            ending,
            writes,
        };
        let mut inner = self.lock();
        if job.place.is_some() {
            inner.running -= 1;
            inner.held_blocks -= job.held_blocks;
            inner.metrics.ended(&request, job.finish.as_deref());
            if let Some(slot) = job.slot {
                inner.slots.release(slot, &output);
            } else if complete {
                let mut tokens = job.ask.prompt;
                tokens.extend(output);
                inner.cache.insert(&tokens, job.ask.salt.as_deref());
            }
        }
        self.keep(&mut inner, request);
        drop(inner);
        drop(job.place);
    }

    /// Takes note of a replayed recording.
    pub(crate) fn replayed(
        &self,
        path: String,
        arrival: Arrival,
        writes: Vec<LoggedWrite>,
        ending: Ending,
    ) {
        let mut inner = self.lock();
        let request = LoggedRequest {
            request: inner.requests,
            x_request_id: arrival.x_request_id,
            path,
            model: self.options.model.clone(),
            // It is in the recorded bytes, which are not read here.
            status: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            first_byte_ns: arrival.first_byte,
            start_ns: arrival.first_byte,
            ending,
            writes,
        };
        inner.requests += 1;
        self.keep(&mut inner, request);
    }

    /// Puts a request into the log and its file.
    fn keep(&self, inner: &mut Inner, request: LoggedRequest) {
        if let Some(file) = &self.log_file {
            file.write(&request);
        }
        inner.log.push(request, self.options.log_requests);
    }

    /// Writes what is left of the log to its file.
    pub(crate) fn close_log(&self) {
        if let Some(file) = &self.log_file {
            file.close();
        }
    }

    /// What `GET /slots` of llama.cpp's server says.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.lock().slots.list().to_vec()
    }

    /// Forgets what a slot holds; tokens forgotten.
    pub(crate) fn erase_slot(&self, index: usize) -> Option<usize> {
        self.lock().slots.erase(index)
    }

    /// Requests in service or waiting.
    pub(crate) fn busy(&self) -> usize {
        let inner = self.lock();
        inner.running + inner.waiting
    }

    /// Empties the cache, or refuses.
    pub(crate) fn reset_cache(&self) -> bool {
        let mut inner = self.lock();
        let idle = inner.running + inner.waiting == 0;
        match self.options.cache.reset {
            ResetStyle::Lie => return true,
            ResetStyle::Refuse(times) if inner.resets_refused < times => {
                inner.resets_refused += 1;
                return false;
            }
            ResetStyle::Refuse(_) | ResetStyle::WhenIdle | ResetStyle::Absent => {}
        }
        if idle {
            inner.cache.clear();
        }
        idle
    }

    /// The text of `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let inner = self.lock();
        let gauges = Gauges {
            running: inner.running,
            waiting: inner.waiting,
            kv_usage: match self.options.cache.blocks {
                Some(blocks) => inner.held_blocks as f64 / blocks.max(1) as f64,
                None => 0.0,
            },
        };
        inner.metrics.render(&self.options.model, gauges)
    }

    /// A copy of the log.
    pub(crate) fn log(&self) -> Log {
        self.lock().log.clone()
    }

    /// Empties the log.
    pub(crate) fn clear_log(&self) {
        self.lock().log = Log::default();
    }
}

/// Slots of llama.cpp's server; none elsewhere.
fn slots_of(options: &MockOptions) -> usize {
    match options.persona {
        Persona::Vllm => 0,
        Persona::LlamaCpp { slots } => slots,
    }
}

impl Job {
    /// The number of the request.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}
