use std::num::NonZeroU64;
use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::{DAY, Key, Limit, SECOND, SlowDown, Span, SpanError, Tokens, TokensError};
use tollgate_simulation::{Arrival, Arrivals, Asking, Rule, START, Service, Traffic, Trial, recorded};

use crate::fault::Fault;
use crate::recording::Recording;
use crate::words;

/// The settings of trials, and the calls to try them on. An empty field is not given.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    /// One trial each.
    limits: Vec<Tried>,
    /// Whether a call that can be granted later is granted for later.
    reserve: bool,
    /// How long a call works, before it is settled and releases its leases; for ever, if empty.
    work: String,
    /// The tokens that a call has used when its work ends; its cost, if empty.
    used: String,
    /// The n for which the client of every n-th call dies; no client dies, if empty.
    dies: String,
    /// How long after a call its tokens come back, if nobody has settled it; never, if empty.
    lapses_after: String,
    /// How much of the second limit, which all callers share, stays behind where the rest is lent; then the second
    /// trial is of both limits. Nothing is lent, if empty.
    lend: String,
    /// Whether the second trial asks both limits in turn: the second one where the first refuses.
    in_turn: bool,
    /// The tokens in a wallet when its first caller comes; none, if empty.
    funds: String,
    /// The service that granted calls go on to, as [`Service`] reads it; there is none, if empty.
    service: String,
    /// Patterns as `tollgate simulate --traffic` takes them.
    traffic: Vec<String>,
    /// Recorded calls, instead of patterns.
    csv: String,
    /// Calls made by hand: so many microseconds after the start.
    clicks: Vec<String>,
    /// The seed of random traffic; 1, if empty.
    seed: String,
    /// The caller whose balance is shown; the first caller, if nobody has this key.
    watch: String,
}

/// A limit by the words of a limits file.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    name: String,
    words: Vec<(String, String)>,
    /// Whether all callers share one row.
    global: bool,
    /// In what time its rate would grow back from nothing, if it follows the service; it does not, if empty.
    follows: String,
}

/// Calls in their order, between two instants.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) made: Vec<Arrival>,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    /// The caller whose balance is shown.
    pub(crate) watched: Key,
}

impl Scene {
    /// Reads names and values in turn, each before a NUL: what belongs to a limit follows its `limit`. Their own NULs
    /// are `\u{1}0`, and their `\u{1}` are `\u{1}1`. A reader of JSON is as large as a tenth of what a browser loads.
    pub(crate) fn read(text: &str) -> Self {
        let mut scene = Self::default();
        let mut texts = text.split('\0').map(|text| text.replace("\u{1}0", "\0").replace("\u{1}1", "\u{1}"));
        while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
            scene.put(name, value);
        }
        scene
    }

    fn put(&mut self, name: String, value: String) {
        match &name[..] {
            "limit" => self.limits.push(Tried { name: value, ..Tried::default() }),
            "reserve" => self.reserve = true,
            "work" => self.work = value,
            "used" => self.used = value,
            "dies" => self.dies = value,
            "lapses_after" => self.lapses_after = value,
            "lend" => self.lend = value,
            "in_turn" => self.in_turn = true,
            "funds" => self.funds = value,
            "service" => self.service = value,
            "traffic" => self.traffic.push(value),
            "csv" => self.csv = value,
            "click" => self.clicks.push(value),
            "seed" => self.seed = value,
            "watch" => self.watch = value,
            _ => {
                let limit = self.limits.last_mut().expect("a word of a limit follows its name");
                match &name[..] {
                    "global" => limit.global = true,
                    "follows" => limit.follows = value,
                    _ => limit.words.push((name, value)),
                }
            }
        }
    }

    /// The first limit.
    pub(crate) fn limit(&self) -> Result<Limit, Vec<Fault>> {
        self.limits.first().expect("it is asked of one").limit("limit")
    }

    /// Whether all callers share the first limit.
    pub(crate) fn is_global(&self) -> bool {
        self.limits.first().is_some_and(|limit| limit.global)
    }

    /// Prepares the calls, and a trial of each limit.
    pub(crate) fn record(&self) -> Result<Recording, Vec<Fault>> {
        match (self.trials(), self.calls()) {
            (Ok(mut trials), Ok(calls)) => {
                for service in trials.iter_mut().filter_map(|trial| trial.service.as_mut()) {
                    service.start = calls.start;
                }
                Recording::of(trials, calls).map_err(|error| vec![Fault::of_scene(&error)])
            }
            (trials, calls) => Err(trials.err().into_iter().chain(calls.err()).flatten().collect()),
        }
    }

    fn trials(&self) -> Result<Vec<Trial>, Vec<Fault>> {
        let mut faults = Vec::new();
        let work = given(&mut faults, "work", &self.work, span);
        let used = given(&mut faults, "used", &self.used, tokens);
        let dies = given(&mut faults, "dies", &self.dies, number);
        let lapses_after = given(&mut faults, "lapses_after", &self.lapses_after, lapse);
        let funds = given(&mut faults, "funds", &self.funds, tokens).unwrap_or_default();
        let service = given(&mut faults, "service", &self.service, str::parse::<Service>);
        if self.reserve && !self.service.is_empty() {
            faults.push(Fault::of("service", "reservations do not go on to a service (do not reserve)"));
        }
        for (place, text) in [("used", &self.used), ("dies", &self.dies)] {
            if self.work.is_empty() && !text.is_empty() {
                faults.push(Fault::of(place, "no work ends (say how long it lasts)"));
            }
        }
        let mut trials = Vec::new();
        for (place, tried) in self.limits.iter().enumerate() {
            let follows =
                given(&mut faults, &format!("limits.{place}.follows"), &tried.follows, |text| self.follows(text));
            match tried.limit(&format!("limits.{place}")) {
                Ok(limit) => {
                    let rules = vec![Rule { limit, is_global: tried.global, follows }];
                    let (reserve, asking, service) = (self.reserve, Asking::All, service.clone());
                    trials.push(Trial { rules, asking, reserve, work, used, dies, lapses_after, funds, service });
                }
                Err(found) => faults.extend(found),
            }
        }
        if let [one, other] = &self.limits[..]
            && one.name == other.name
        {
            faults.push(Fault::of("limits.1.name", "the other limit has this name"));
        }
        if let (true, [first, second]) = (self.in_turn || !self.lend.is_empty(), &mut trials[..]) {
            second.rules.splice(..0, first.rules.iter().cloned());
            match self.asking() {
                Ok(asking) => second.asking = asking,
                Err(message) => faults.push(Fault::of("lend", message)),
            }
        }
        if faults.is_empty() { Ok(trials) } else { Err(faults) }
    }

    /// How a limit follows the service.
    fn follows(&self, text: &str) -> Result<SlowDown, String> {
        let recovers = span(text)?;
        if self.service.is_empty() {
            return Err("there is no service to follow (say what it takes)".to_owned());
        }
        let is_right = (SECOND..=DAY).contains(&recovers);
        if is_right { Ok(SlowDown::new().recovers(recovers)) } else { Err("it is from 1s to 1d".to_owned()) }
    }

    /// How a call asks both limits.
    fn asking(&self) -> Result<Asking, String> {
        match &self.limits[..] {
            _ if self.reserve => Err("reservations take from no limit for another (do not reserve)".to_owned()),
            _ if self.in_turn => Ok(Asking::InTurn),
            [_, shared] if !shared.global => Err("the second limit is not shared by all callers".to_owned()),
            _ => tokens(&self.lend).map(Asking::Lending),
        }
    }

    /// All calls in their order.
    pub(crate) fn calls(&self) -> Result<Calls, Vec<Fault>> {
        let (mut made, start, end) = if self.csv.is_empty() { self.made()? } else { self.recorded()? };
        let caller = made.first().map_or_else(|| Key::new("you"), |first| Ok(first.key.clone()));
        let caller = caller.expect("a short word is a key");
        for click in &self.clicks {
            let after = click.parse().map_err(|_| vec![Fault::of("clicks", "it is no whole number")])?;
            let at = start.plus(Duration::from_micros(after));
            let place = made.partition_point(|call| call.at <= at);
            made.insert(place, Arrival { at, key: caller.clone(), cost: Tokens::ONE });
        }
        if made.len() > MOST_CALLS {
            return Err(vec![Fault::of(if self.csv.is_empty() { "traffic" } else { "csv" }, TOO_MANY)]);
        }
        let watched = made.iter().map(|call| &call.key).find(|key| key.as_str() == self.watch);
        let watched = watched.or(made.first().map(|call| &call.key)).unwrap_or(&Key::GLOBAL).clone();
        let last = made.last().map_or(end, |last| last.at.plus(Duration::from_micros(1)));
        Ok(Calls { made, start, end: end.max(last), watched })
    }

    /// The calls of the patterns, and when they begin and end.
    fn made(&self) -> Result<(Vec<Arrival>, Timestamp, Timestamp), Vec<Fault>> {
        let mut faults = Vec::new();
        let mut traffic: Vec<Traffic> = Vec::new();
        for (place, text) in self.traffic.iter().enumerate() {
            match text.parse() {
                Ok(pattern) => traffic.push(pattern),
                Err(message) => faults.push(Fault::of(format!("traffic.{place}"), message)),
            }
        }
        let seed = match &self.seed[..] {
            "" => Ok(1),
            seed => seed.parse(),
        };
        let seed = seed.unwrap_or_else(|_| {
            faults.push(Fault::of("seed", "it is no whole number, or too large"));
            0
        });
        if !faults.is_empty() {
            return Err(faults);
        }
        let end = traffic.iter().map(Traffic::end).max().unwrap_or(START.plus(QUIET));
        let made = Arrivals::new(&traffic, seed).take(MOST_CALLS + 1).collect();
        Ok((made, START, end))
    }

    fn recorded(&self) -> Result<(Vec<Arrival>, Timestamp, Timestamp), Vec<Fault>> {
        let made = recorded(self.csv.as_bytes()).take(MOST_CALLS + 1).collect::<Result<Vec<_>, _>>();
        let made = made.map_err(|fault| vec![Fault::of("csv", fault.to_string())])?;
        let (Some(first), Some(last)) = (made.first(), made.last()) else {
            return Err(vec![Fault::of("csv", "there is no call in it")]);
        };
        let (start, end) = (first.at, last.at);
        Ok((made, start, end))
    }
}

impl Tried {
    pub(crate) fn limit(&self, place: &str) -> Result<Limit, Vec<Fault>> {
        words::limit(place, &self.name, &self.words)
    }
}

/// The value of a field, if it is given and right.
fn given<T>(faults: &mut Vec<Fault>, place: &str, text: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    if text.is_empty() {
        return None;
    }
    read(text).map_err(|message| faults.push(Fault::of(place, message))).ok()
}

fn span(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(span)| span).map_err(|error: SpanError| error.to_string())
}

fn lapse(text: &str) -> Result<Duration, String> {
    span(text).and_then(|span| if span.is_zero() { Err("it is zero (write 20s)".to_owned()) } else { Ok(span) })
}

fn number(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| "it is no whole number from 1 on (write 5, for every fifth)".to_owned())
}

fn tokens(text: &str) -> Result<Tokens, String> {
    let tokens: Tokens = text.parse().map_err(|error: TokensError| error.to_string())?;
    if tokens.is_negative() { Err("it is negative".to_owned()) } else { Ok(tokens) }
}

/// A page draws so many at once. The command has no such bound.
const MOST_CALLS: usize = 20_000;
const TOO_MANY: &str = "these are more than 20000 calls (make it shorter, or run `tollgate simulate`)";

/// How long a scene without traffic is.
const QUIET: Duration = Duration::from_secs(30);
