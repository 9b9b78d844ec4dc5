//! Customers who go through the same steps again and again, over a few cores and a few rows that one holds at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::bench::users::Lots;

/// A part of a cycle; spans in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Keeps a core busy; for the second span the customer goes on meanwhile.
    Work(f64, f64),
    /// Waits for nobody in particular.
    Pause(f64),
    /// Waits for a flush that begins from now on. There is one at a time, for all who wait when it begins.
    Flush(f64),
    /// Takes a row that is free, or waits for one.
    Take,
    /// Gives the row to whoever waits longest for it.
    Give,
}

/// Who goes through what, on what.
#[derive(Clone, Debug)]
pub(super) struct Simulation {
    pub(super) cores: usize,
    /// How fast each core is: less than 1 where others use it too.
    pub(super) speed: f64,
    pub(super) rows: usize,
    pub(super) customers: usize,
    pub(super) cycle: Vec<Step>,
}

impl Simulation {
    /// Cycles per second of all customers together, and flushes per cycle.
    pub(super) fn run(&self) -> (f64, f64) {
        let mut course = Course {
            simulation: self,
            now: 0,
            events: BinaryHeap::new(),
            lots: Lots::new(0),
            idle_cores: self.cores,
            for_cores: VecDeque::new(),
            rows: vec![Row::default(); self.rows],
            customers: vec![Customer::default(); self.customers],
            cycles: 0,
            flushing: Vec::new(),
            to_flush: Vec::new(),
            flushes: 0,
        };
        (0..self.customers).for_each(|customer| course.go_on(customer));
        course.until(WARM_UP);
        let before = (course.cycles, course.flushes);
        course.until(WARM_UP + u64::from(MEASURED) * 1_000_000_000);
        let (cycles, flushes) = (f64::from(course.cycles - before.0), f64::from(course.flushes - before.1));
        (cycles / f64::from(MEASURED), flushes / cycles.max(1.0))
    }
}

/// A simulation under way. Time is in nanoseconds, so that it is the same on every machine.
struct Course<'a> {
    simulation: &'a Simulation,
    now: u64,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    lots: Lots,
    idle_cores: usize,
    for_cores: VecDeque<usize>,
    rows: Vec<Row>,
    customers: Vec<Customer>,
    cycles: u32,
    /// Whom the flush under way is for,
    flushing: Vec<usize>,
    /// and whom the next.
    to_flush: Vec<usize>,
    flushes: u32,
}

#[derive(Clone, Debug, Default)]
struct Row {
    is_held: bool,
    waiting: VecDeque<usize>,
}

#[derive(Clone, Debug, Default)]
struct Customer {
    step: usize,
    row: usize,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// The customer's step is done,
    Done,
    /// a core is idle that was busy for the customer,
    Idle,
    /// or the flush is done.
    Flushed,
}

impl Course<'_> {
    fn until(&mut self, end: u64) {
        while let Some(Reverse((at, customer, event))) = self.events.pop() {
            if at > end {
                self.events.push(Reverse((at, customer, event)));
                break;
            }
            self.now = at;
            match event {
                Event::Done => self.next(customer),
                Event::Idle => {
                    self.idle_cores += 1;
                    if let Some(next) = self.for_cores.pop_front() {
                        self.go_on(next);
                    }
                }
                Event::Flushed => {
                    let flushed = std::mem::take(&mut self.flushing);
                    self.flush();
                    for customer in flushed {
                        self.next(customer);
                    }
                }
            }
        }
        self.now = end;
    }

    /// Ends a customer's step and begins the next.
    fn next(&mut self, customer: usize) {
        self.customers[customer].step += 1;
        if self.customers[customer].step == self.simulation.cycle.len() {
            self.customers[customer].step = 0;
            self.cycles += 1;
        }
        self.go_on(customer);
    }

    /// Does a customer's step, or has it wait.
    fn go_on(&mut self, customer: usize) {
        match self.simulation.cycle[self.customers[customer].step] {
            Step::Work(..) if self.idle_cores == 0 => self.for_cores.push_back(customer),
            Step::Work(span, aside) => {
                self.idle_cores -= 1;
                let lot = self.lot() / self.simulation.speed;
                self.after(span * lot, customer, Event::Done);
                self.after((span + aside) * lot, customer, Event::Idle);
            }
            Step::Pause(span) => {
                let lot = self.lot();
                self.after(span * lot, customer, Event::Done);
            }
            Step::Flush(_) => {
                self.to_flush.push(customer);
                self.flush();
            }
            Step::Take => self.take(customer),
            Step::Give => {
                let row = &mut self.rows[self.customers[customer].row];
                let heir = row.waiting.pop_front();
                row.is_held = heir.is_some();
                self.next(customer);
                if let Some(heir) = heir {
                    self.next(heir);
                }
            }
        }
    }

    /// Begins a flush for all who wait for one, unless one is under way.
    fn flush(&mut self) {
        let Some(&first) = self.to_flush.first().filter(|_| self.flushing.is_empty()) else { return };
        self.flushing = std::mem::take(&mut self.to_flush);
        self.flushes += 1;
        if let Step::Flush(span) = self.simulation.cycle[self.customers[first].step] {
            let lot = self.lot();
            self.after(span * lot, first, Event::Flushed);
        }
    }

    /// Any row that is free; if there is none, any row.
    fn take(&mut self, customer: usize) {
        let free: Vec<_> = (0..self.rows.len()).filter(|row| !self.rows[*row].is_held).collect();
        let among = if free.is_empty() { self.rows.len() } else { free.len() };
        let lot = self.lots.below(u32::try_from(among).unwrap_or(u32::MAX)) as usize;
        let row = free.get(lot).copied().unwrap_or(lot);
        self.customers[customer].row = row;
        if free.is_empty() {
            self.rows[row].waiting.push_back(customer);
        } else {
            self.rows[row].is_held = true;
            self.next(customer);
        }
    }

    /// A factor of one on average, between a half and one and a half: nothing takes the same time always.
    fn lot(&mut self) -> f64 {
        0.5 + self.lots.share()
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "spans of some seconds at most")]
    fn after(&mut self, micros: f64, customer: usize, event: Event) {
        self.events.push(Reverse((self.now + (micros * 1e3) as u64, customer, event)));
    }
}

/// Nanoseconds.
const WARM_UP: u64 = 500_000_000;
/// Seconds.
const MEASURED: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.05, "{found} instead of {expected}");
    }

    fn held(customers: usize, rows: usize) -> f64 {
        let cycle = vec![Step::Take, Step::Pause(2_000.0), Step::Give];
        Simulation { cores: 2, speed: 1.0, rows, customers, cycle }.run().0
    }

    #[test]
    fn one_row_is_held_by_one_at_a_time() {
        near(held(1, 1), 500.0);
        near(held(16, 1), 500.0);
    }

    #[test]
    fn more_rows_than_customers_are_no_use() {
        near(held(3, 16), 1_500.0);
        near(held(3, 3), 1_500.0);
    }

    #[test]
    fn rows_are_taken_by_as_many_at_once() {
        near(held(64, 4), 2_000.0);
    }

    #[test]
    fn a_flush_is_for_all_who_wait_when_it_begins() {
        let of = |customers| {
            let cycle = vec![Step::Flush(1_000.0)];
            Simulation { cores: 2, speed: 1.0, rows: 0, customers, cycle }.run()
        };
        near(of(1).0, 1_000.0);
        near(of(1).1, 1.0);
        // The first begins at once, and the others share the next.
        near(of(50).0, 25_000.0);
        near(of(50).1, 0.04);
    }

    #[test]
    fn busy_cores_bound_the_rate_and_others_on_them_lower_it() {
        let cycle = vec![Step::Work(80.0, 20.0), Step::Pause(100.0)];
        let of = |customers, speed| Simulation { cores: 2, speed, rows: 1, customers, cycle: cycle.clone() }.run().0;
        near(of(1, 1.0), 1e6 / 180.0);
        near(of(32, 1.0), 20_000.0);
        near(of(32, 0.5), 10_000.0);
    }
}
