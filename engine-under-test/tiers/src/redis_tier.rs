//! Images in a Redis-compatible server, which several engines and restarts share.
//!
//! The server bounds its own memory (`maxmemory` with an eviction policy); a key that it dropped
//! is a miss. Each value is a sealed frame, because the server is trusted with nothing. An engine
//! never waits longer than the timeout, and does not wait again and again: after a failed
//! operation the tier rests for a number of operations, twice as many after every failure in a row.

use std::cell::RefCell;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::error::TierError;
use crate::frame::{self, HEADER_BYTES};
use crate::key::TierKey;
use crate::lru::Lru;
use crate::redis_worker::{Answer, Failure, Job, Worker};
use crate::tier::{PutOutcome, Tier, TierKind};

/// Environment variable that holds the server's password, if it asks for one.
pub const PASSWORD_VARIABLE: &str = "PREFILLBENCH_REDIS_PASSWORD";

/// Operations that a tier rests after its first failure.
pub const RETRY_AFTER_OPERATIONS: u32 = 64;

/// Longest rest.
const LONGEST_REST: u32 = 4_096;

/// Keys that one round trip asks about.
const KEYS_PER_QUESTION: usize = 256;

/// Keys remembered as stored; the oldest are forgotten first, which costs a round trip each.
const MAX_KNOWN_KEYS: u64 = 1 << 20;

const DEFAULT_PORT: u16 = 6_379;

/// A credential: it has no way to be printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` from being printed.
    pub fn new(text: String) -> Self {
        Secret(text)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where the server is and how to treat it.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Database number.
    pub database: u32,
    /// Password of the server.
    pub password: Option<Secret>,
    /// First part of every key; letters, digits, `-` and `_`.
    pub namespace: String,
    /// Longest wait for one operation.
    pub timeout: Duration,
}

impl RedisOptions {
    /// Reads `redis://HOST[:PORT][/DATABASE]`. The other options are the defaults: no password,
    /// namespace `prefillbench`, 200 ms.
    ///
    /// # Errors
    /// Another form, and an address with credentials in it, which would end up in manifests.
    pub fn parse(url: &str) -> Result<Self, TierError> {
        let bad = |value: &str, fix| TierError::Option {
            key: "redis_url",
            value: value.to_owned(),
            fix,
        };
        if url.contains('@') {
            let fix = "leave user and password out; PREFILLBENCH_REDIS_PASSWORD holds the password";
            return Err(bad("(not shown)", fix));
        }
        let malformed = || bad(url, "write redis://HOST[:PORT][/DATABASE]");
        let rest = url.strip_prefix("redis://").ok_or_else(malformed)?;
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| malformed())?,
        };
        // An IPv6 address stands in brackets, which keep its colons from the port's.
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| malformed())?)
            }
            _ => (address, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "?#".contains(c)) {
            return Err(malformed());
        }
        Ok(RedisOptions {
            host: host.to_owned(),
            port,
            database,
            password: None,
            namespace: "prefillbench".to_owned(),
            timeout: Duration::from_millis(200),
        })
    }

    fn connection_info(&self) -> Result<ConnectionInfo, TierError> {
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(self.database))
            .set_skip_set_lib_name();
        if let Some(Secret(password)) = &self.password {
            settings = settings.set_password(password);
        }
        let address = ConnectionAddr::Tcp(self.host.clone(), self.port);
        let info = address.into_connection_info();
        let info = info.map_err(|e| TierError::Unreachable(e.to_string()))?;
        Ok(info.set_redis_settings(settings))
    }
}

/// A shared server. Nothing is evicted by this tier.
#[derive(Debug)]
pub struct RedisTier {
    namespace: String,
    link: RefCell<Link>,
    /// Keys stored or seen by this process, with the bytes of their frames. A lookup may learn.
    known: RefCell<Lru<()>>,
    /// Whose blocks [`Tier::clear`] removes.
    identity: [u8; 32],
}

/// The connection, or the rest that follows its loss.
#[derive(Debug)]
struct Link {
    info: ConnectionInfo,
    timeout: Duration,
    worker: Option<Worker>,
    /// Operations to let pass before the next attempt.
    resting: u32,
    /// Length of the next rest.
    next_rest: u32,
    lookup_errors: u64,
}

impl Link {
    /// Asks the server; `None` while the tier rests.
    fn ask(&mut self, job: Job) -> Result<Option<Answer>, TierError> {
        if self.resting > 0 {
            self.resting -= 1;
            return Ok(None);
        }
        let asked = match self.worker.take() {
            Some(worker) => Ok(worker),
            None => Worker::start(self.info.clone(), self.timeout),
        }
        .and_then(|worker| {
            let answer = worker.ask(job);
            if !matches!(answer, Err(Failure::Unreachable(_))) {
                self.worker = Some(worker);
            }
            answer
        });
        match asked {
            Err(Failure::Unreachable(text)) => {
                self.resting = self.next_rest;
                self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
                Err(TierError::Unreachable(text))
            }
            Err(Failure::Server(text)) => {
                self.next_rest = RETRY_AFTER_OPERATIONS;
                Err(TierError::Server(text))
            }
            Ok(answer) => {
                self.next_rest = RETRY_AFTER_OPERATIONS;
                Ok(Some(answer))
            }
        }
    }
}

impl RedisTier {
    /// A tier on the server of `options` for the engine `identity`. Does not connect yet, and a
    /// server that is down is no error: it is asked again later.
    ///
    /// # Errors
    /// A namespace with other characters than letters, digits, `-` and `_`.
    pub fn new(options: &RedisOptions, identity: [u8; 32]) -> Result<Self, TierError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if options.namespace.is_empty() || !options.namespace.chars().all(plain) {
            return Err(TierError::Option {
                key: "redis namespace",
                value: options.namespace.clone(),
                fix: "use letters, digits, '-' and '_'",
            });
        }
        let link = Link {
            info: options.connection_info()?,
            timeout: options.timeout,
            worker: None,
            resting: 0,
            next_rest: RETRY_AFTER_OPERATIONS,
            lookup_errors: 0,
        };
        Ok(RedisTier {
            namespace: options.namespace.clone(),
            link: RefCell::new(link),
            known: RefCell::default(),
            identity,
        })
    }

    /// Whether the last operation failed and the tier rests.
    pub fn is_resting(&self) -> bool {
        self.link.borrow().resting > 0
    }

    fn name(&self, key: &TierKey) -> String {
        format!("{}:1:{}", self.namespace, key.to_hex())
    }

    fn remember(&self, key: &TierKey, bytes: u64) {
        let mut known = self.known.borrow_mut();
        known.insert(*key, bytes, ());
        if known.len() > MAX_KNOWN_KEYS
            && let Some(oldest) = known.oldest()
        {
            known.remove(&oldest);
        }
    }

    /// Asks which of the keys are there, as far as the first that is not.
    fn leading_on_server(&self, keys: &[TierKey]) -> usize {
        let names = keys.iter().map(|key| self.name(key)).collect();
        // Its own statement: the arms below borrow the link again.
        let answer = self.link.borrow_mut().ask(Job::Exist(names));
        let exist = match answer {
            Ok(Some(Answer::Exist(exist))) => exist,
            Ok(_) => return 0,
            Err(_) => {
                self.link.borrow_mut().lookup_errors += 1;
                return 0;
            }
        };
        let count = exist.iter().take_while(|&&there| there).count();
        // Their sizes are not known before they are read.
        keys[..count].iter().for_each(|key| self.remember(key, 0));
        count
    }
}

impl Tier for RedisTier {
    fn kind(&self) -> TierKind {
        TierKind::Redis
    }

    /// What this process has stored is taken as held; for other keys the server is asked.
    fn contains(&self, key: &TierKey) -> bool {
        self.leading(std::slice::from_ref(key)) == 1
    }

    fn leading(&self, keys: &[TierKey]) -> usize {
        let mut count = 0;
        // While the tier rests nothing can come from it, whatever it held.
        while count < keys.len()
            && !(self.is_resting() && self.known.borrow().contains(&keys[count]))
        {
            if self.known.borrow().contains(&keys[count]) {
                count += 1;
                continue;
            }
            let page = &keys[count..keys.len().min(count + KEYS_PER_QUESTION)];
            let there = self.leading_on_server(page);
            count += there;
            if there < page.len() {
                break;
            }
        }
        count
    }

    fn get(&mut self, key: &TierKey, out: &mut Vec<u8>) -> Result<bool, TierError> {
        out.clear();
        let name = self.name(key);
        let value = match self.link.get_mut().ask(Job::Get(name.clone()))? {
            Some(Answer::Value(Some(value))) => value,
            Some(_) => {
                self.known.get_mut().remove(key);
                return Ok(false);
            }
            None => return Ok(false),
        };
        match frame::open(key, &value) {
            Ok(image) => {
                out.extend_from_slice(image);
                self.remember(key, value.len() as u64);
                Ok(true)
            }
            Err(what) => {
                self.known.get_mut().remove(key);
                self.link.get_mut().ask(Job::Delete(name.clone()))?;
                let place = format!("redis key {name}");
                Err(TierError::Corrupt { place, what })
            }
        }
    }

    fn put(&mut self, key: &TierKey, image: &[u8]) -> Result<PutOutcome, TierError> {
        let mut outcome = PutOutcome::default();
        if self.known.get_mut().touch(key).is_some() {
            (outcome.stored, outcome.present) = (true, true);
            return Ok(outcome);
        }
        let mut value = Vec::with_capacity(HEADER_BYTES + image.len());
        value.extend_from_slice(&frame::header(key, 0, image));
        value.extend_from_slice(image);
        let (name, bytes) = (self.name(key), value.len() as u64);
        if self.link.get_mut().ask(Job::Set(name, value))?.is_some() {
            self.remember(key, bytes);
            outcome.stored = true;
        }
        Ok(outcome)
    }

    fn blocks(&self) -> u64 {
        self.known.borrow().len()
    }

    fn bytes(&self) -> u64 {
        self.known.borrow().bytes()
    }

    fn clear(&mut self) -> Result<(), TierError> {
        self.known.get_mut().clear();
        let mut of_engine = TierKey {
            identity: self.identity,
            hash: Default::default(),
        }
        .to_hex();
        of_engine.truncate(65);
        let pattern = format!("{}:1:{of_engine}*", self.namespace);
        let mut cursor = 0;
        loop {
            let pattern = pattern.clone();
            match self
                .link
                .get_mut()
                .ask(Job::ClearPage { pattern, cursor })?
            {
                Some(Answer::Cursor(next)) if next != 0 => cursor = next,
                Some(_) => return Ok(()),
                None => return Err(TierError::Unreachable("not cleared".to_owned())),
            }
        }
    }

    fn lookup_errors(&self) -> u64 {
        self.link.borrow().lookup_errors
    }

    fn check(&self) -> Result<(), String> {
        self.known.borrow().check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_bad_ones_named() {
        let address = |url: &str| {
            let options = RedisOptions::parse(url).unwrap();
            (options.host, options.port, options.database)
        };
        assert_eq!(address("redis://cache"), ("cache".to_owned(), 6_379, 0));
        assert_eq!(
            address("redis://10.0.0.1:7000/3"),
            ("10.0.0.1".to_owned(), 7_000, 3)
        );
        assert_eq!(address("redis://[::1]:7000"), ("::1".to_owned(), 7_000, 0));
        assert_eq!(address("redis://[::1]/2"), ("::1".to_owned(), 6_379, 2));
        for bad in [
            "cache",
            "rediss://x",
            "redis://",
            "redis://:1",
            "redis://x:y",
            "redis://x/a",
        ] {
            let text = RedisOptions::parse(bad).unwrap_err().to_string();
            assert!(
                text.contains("tiers.redis_url") && text.contains(bad),
                "{text}"
            );
        }
    }

    #[test]
    fn no_credential_is_printed() {
        let error = RedisOptions::parse("redis://user:hunter2@host").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        let mut options = RedisOptions::parse("redis://host").unwrap();
        options.password = Some(Secret::new("hunter2".to_owned()));
        let tier = RedisTier::new(&options, [0; 32]).unwrap();
        assert!(!format!("{options:?} {tier:?}").contains("hunter2"));
    }
}
