use std::io::{Stdout, Write, stdout};
use std::time::Duration;

use chrono::{DateTime, FixedOffset, Utc};
use sqlx::PgConnection;
use tollgate::{Balance, Limiter, Request, Tokens};

use crate::error::CommandError;

/// Where the demo prints.
pub(super) struct Screen {
    out: Stdout,
    scene: u8,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { out: stdout(), scene: 0 }
    }

    pub(super) fn line(&mut self, text: &str) -> Result<(), CommandError> {
        Ok(writeln!(self.out, "{text}")?)
    }

    /// A new scene: what happens, and the limits that it is about.
    pub(super) fn scene(&mut self, title: &str, limits: &[&str]) -> Result<(), CommandError> {
        self.scene += 1;
        self.line(&format!("\n{}. {title}", self.scene))?;
        limits.iter().try_for_each(|limit| self.line(&format!("   limit    {limit}")))
    }

    /// What was asked, and the answer.
    pub(super) fn answer(&mut self, asked: &str, answer: &str) -> Result<(), CommandError> {
        self.line(&format!("   {asked:<36} {answer}"))
    }

    /// A balance as a number and a bar.
    pub(super) fn balance(&mut self, balance: &Balance) -> Result<(), CommandError> {
        let Balance { limit, value, capacity, .. } = balance;
        let text = format!("{} {:>7} of {capacity}", bar(*value, *capacity), short(*value));
        self.answer(&format!("balance of {limit}"), &text)
    }

    /// The balance over the time to come, if nobody spends.
    pub(super) async fn outlook(
        &mut self,
        conn: &mut PgConnection,
        request: Request,
        span: Duration,
    ) -> Result<(), CommandError> {
        let now = Limiter::new().balance(conn, request.clone()).await?;
        self.balance(&now)?;
        let mut line = String::new();
        for sample in 0..SAMPLES {
            let limiter = Limiter::new().at(now.observed_at + span * sample / (SAMPLES - 1));
            let balance = limiter.balance(conn, request.clone()).await?;
            line.push(level(balance.value, balance.capacity));
        }
        self.answer(
            &format!("tokens over the next {}", humantime::format_duration(span)),
            &format!("{line}  ('-' is a debt)"),
        )
    }
}

/// The time of day, to the microsecond.
pub(super) fn clock(instant: DateTime<Utc>) -> String {
    instant.format("%H:%M:%S%.6f UTC").to_string()
}

/// Day and time in a zone.
pub(super) fn local(instant: DateTime<Utc>, zone: FixedOffset) -> String {
    instant.with_timezone(&zone).format("%Y-%m-%d %H:%M:%S %:z").to_string()
}

/// Tokens to two decimals, rounded down: for people to look at.
pub(super) fn short(tokens: Tokens) -> Tokens {
    Tokens::from_micros(tokens.micros().div_euclid(10_000) * 10_000)
}

fn bar(value: Tokens, capacity: Tokens) -> String {
    let filled = eighths(value, capacity, BAR_WIDTH);
    let blocks: String = (0..BAR_WIDTH).map(|place| if place < filled { '█' } else { '·' }).collect();
    format!("▕{blocks}▏")
}

fn level(value: Tokens, capacity: Tokens) -> char {
    if value.is_negative() {
        return '-';
    }
    LEVELS[eighths(value, capacity, LEVELS.len() - 1).min(LEVELS.len() - 1)]
}

/// The share of the capacity that is there, in `steps`, rounded down.
fn eighths(value: Tokens, capacity: Tokens, steps: usize) -> usize {
    let share = i128::from(value.micros().max(0)) * steps as i128 / i128::from(capacity.micros().max(1));
    usize::try_from(share).unwrap_or(steps)
}

const BAR_WIDTH: usize = 20;
const SAMPLES: u32 = 48;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
