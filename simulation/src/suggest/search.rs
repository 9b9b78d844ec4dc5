use tollgate::{Limit, LimitError, LimitKind, LimitSpec, Tokens};

use super::caller::Caller;
use super::{Choice, Question};

/// A search for the numbers of a limit. All of them are whole tokens.
#[derive(Debug)]
pub(super) struct Search<'q> {
    pub(super) question: &'q Question,
    pub(super) allowed_calls: usize,
    pub(super) allowed_keys: usize,
}

/// The choices that were found, and which of them is the answer.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) choices: Vec<Choice>,
    pub(super) chosen: usize,
    /// Whether the number of calls decided, and not that of keys.
    pub(super) is_by_calls: bool,
}

/// Limits that differ in one number: the capacity of a bucket with this rate, or without one the size of a window.
type Rate = Option<i64>;

/// The least number of a limit that is within the share.
struct Fit {
    number: i64,
    choice: Choice,
    is_by_calls: bool,
}

/// A caller, and the least number with which none of its calls is refused.
type Deep<'c> = (i64, &'c Caller);

impl Search<'_> {
    /// The least capacity for each of several rates. The answer is one of all whole rates: its sum with its capacity is
    /// the least, to within one per cent.
    pub(super) fn bucket(&self, callers: &[Caller]) -> Result<Found, String> {
        let all: Vec<_> = callers.iter().collect();
        let depths = self.depths(Some(1), &all)?;
        let first = self.fit(Some(1), &depths, 1, [])?;
        // From here on a rate is a larger sum by itself.
        let top = first.number;
        let last = self.fit(Some(top), &self.depths(Some(top), &all)?, 1, [])?;
        let (floor, is_floor_by_calls) = (last.number, last.is_by_calls);
        // A higher rate refuses none of the others, either, with a capacity from the floor on.
        let heavy: Vec<_> = depths.iter().filter(|(depth, _)| *depth > floor).map(|(_, caller)| *caller).collect();
        // It is hardly less than the capacity of a higher rate, or more than that of a lower one.
        let fit = |rate, fits: &[(i64, Fit)]| {
            let place = place_of(fits, rate);
            let higher = fits.get(place).map(|(_, fit)| fit.number - 1);
            let lower = fits[..place].last().map(|(_, fit)| fit.number);
            let guesses = higher.into_iter().chain(lower);
            let fit = self.fit(Some(rate), &self.depths(Some(rate), &heavy)?, floor, guesses)?;
            let is_by_calls = fit.is_by_calls || fit.number == floor && is_floor_by_calls;
            Ok::<_, String>(Fit { is_by_calls, ..fit })
        };

        let mut fits = vec![(1, first)];
        put(&mut fits, top, last);
        for rate in steps(2, top) {
            let found = fit(rate, &fits)?;
            put(&mut fits, rate, found);
        }
        let shown: Vec<_> = fits.iter().map(|(rate, _)| *rate).collect();
        let mut gaps: Vec<_> = shown.windows(2).map(|pair| (pair[0], pair[1])).collect();
        while let Some((low, high)) = gaps.pop() {
            let best = fits.iter().map(|(rate, fit)| rate + fit.number).min().expect("the first is there");
            if high - low < 2 || low + 1 + fits[place_of(&fits, high)].1.number > best - best / 100 {
                continue;
            }
            let middle = low.midpoint(high);
            let found = fit(middle, &fits)?;
            put(&mut fits, middle, found);
            gaps.extend([(low, middle), (middle, high)]);
        }
        let chosen =
            fits.iter().min_by_key(|(rate, fit)| (*rate + fit.number, fit.number)).expect("the first is there").0;
        fits.retain(|(rate, _)| *rate == chosen || shown.contains(rate));
        Ok(Found::among(fits, chosen))
    }

    /// The least size of a window, among others that refuse more and less.
    pub(super) fn window(&self, callers: &[Caller]) -> Result<Found, String> {
        let depths = self.depths(None, &callers.iter().collect::<Vec<_>>())?;
        let fit = self.fit(None, &depths, 1, [])?;
        let (chosen, none) = (fit.number, depths[0].0);
        let mut fits = Vec::new();
        for number in steps(1 + chosen / 10, none).chain([none]) {
            let choice = self.choice(None, number, &depths, usize::MAX)?.expect("there is no bound");
            put(&mut fits, number, Fit { number, choice, is_by_calls: false });
        }
        put(&mut fits, chosen, fit);
        Ok(Found::among(fits, chosen))
    }

    /// How deep each caller goes, the deepest first.
    fn depths<'c>(&self, rate: Rate, callers: &[&'c Caller]) -> Result<Vec<Deep<'c>>, String> {
        let depth = |caller: &&'c Caller| Ok((caller.depth(|number| self.limit(rate, number))?, *caller));
        let mut depths = callers.iter().map(depth).collect::<Result<Vec<_>, String>>()?;
        depths.sort_unstable_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        Ok(depths)
    }

    /// The least number from a floor on that is within the share, for the callers that go deeper than the floor.
    ///
    /// Keys alone decide it exactly: a key is refused a call where it goes deeper than the number. Where calls decide,
    /// the number is enough and one less is not. That is the least if a larger number refuses no more calls, as it is
    /// with calls of one cost, but for the rounding of a refill. If costs differ, a large call that is refused may
    /// leave room for several small ones. The guesses are tried first.
    fn fit(
        &self,
        rate: Rate,
        depths: &[Deep<'_>],
        floor: i64,
        guesses: impl IntoIterator<Item = i64>,
    ) -> Result<Fit, String> {
        let deepest = |place: usize| depths.get(place).map_or(floor, |(depth, _)| floor.max(*depth));
        let (by_keys, none) = (deepest(self.allowed_keys), deepest(0));
        let within = |number| self.choice(rate, number, depths, self.allowed_calls);
        if let Some(choice) = within(by_keys)? {
            return Ok(Fit { number: by_keys, choice, is_by_calls: false });
        }
        let (mut low, mut high) = (by_keys, none);
        let mut guesses = guesses.into_iter();
        while high - low > 1 {
            let between = guesses.find(|guess| (low + 1..high).contains(guess));
            let tried = between.unwrap_or_else(|| low.midpoint(high));
            *(if within(tried)?.is_some() { &mut high } else { &mut low }) = tried;
        }
        let choice = within(high)?.expect("it was found to be within the share, or refuses nothing");
        Ok(Fit { number: high, choice, is_by_calls: true })
    }

    /// The refusals under a number; none where that is more than so many calls.
    fn choice(&self, rate: Rate, number: i64, depths: &[Deep<'_>], most: usize) -> Result<Option<Choice>, String> {
        let limit = self.limit(rate, number)?;
        let deeper = &depths[..depths.partition_point(|(depth, _)| *depth > number)];
        let mut refused_calls = 0;
        for (_, caller) in deeper {
            let Some(refused) = caller.refused(limit.clone(), most - refused_calls)? else { return Ok(None) };
            refused_calls += refused;
        }
        Ok(Some(Choice { limit, refused_calls, refused_keys: deeper.len() }))
    }

    fn limit(&self, rate: Rate, number: i64) -> Result<Limit, String> {
        let Question { name, kind, per, .. } = self.question;
        let [rate, capacity] =
            [rate.unwrap_or(number), number].map(|whole| Tokens::try_from(whole).map_err(|error| error.to_string()));
        let spec = LimitSpec::new(name.clone(), *kind, rate?, *per);
        let capacity = Some(capacity?).filter(|_| *kind == LimitKind::TokenBucket);
        Limit::try_from(spec.with(|spec| spec.capacity = capacity)).map_err(|error: LimitError| error.to_string())
    }
}

impl Found {
    /// Without those that have a higher number beside them for nothing.
    fn among(mut fits: Vec<(i64, Fit)>, chosen: i64) -> Self {
        let is_by_calls = fits.iter().any(|(place, fit)| *place == chosen && fit.is_by_calls);
        fits.dedup_by(|(_, later), (_, earlier)| later.number == earlier.number);
        let chosen = fits.iter().position(|(place, _)| *place == chosen).expect("it has the least of both numbers");
        Self { choices: fits.into_iter().map(|(_, fit)| fit.choice).collect(), chosen, is_by_calls }
    }
}

/// Where the first number is that is not below this one. The fits are few, and a map would be as much code for a
/// browser to load as the search itself.
fn place_of(fits: &[(i64, Fit)], number: i64) -> usize {
    fits.partition_point(|(other, _)| *other < number)
}

/// Puts a fit in its order, in place of the one with its number.
fn put(fits: &mut Vec<(i64, Fit)>, number: i64, fit: Fit) {
    let place = place_of(fits, number);
    match fits.get_mut(place).filter(|(other, _)| *other == number) {
        Some(same) => same.1 = fit,
        None => fits.insert(place, (number, fit)),
    }
}

/// 1, 2, 5, 10, 20 and so on, between two numbers.
fn steps(from: i64, to: i64) -> impl Iterator<Item = i64> {
    let steps =
        (0..).map_while(|decade| 10_i64.checked_pow(decade)).flat_map(|ten| [1, 2, 5].map(|of| ten.checked_mul(of)));
    steps.map_while(|step| step).skip_while(move |step| *step < from).take_while(move |step| *step < to)
}
