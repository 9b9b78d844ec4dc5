//! The guides of the repository's folder `docs` and its design notes, as pages. This module exists in the documentation
//! only.

/// One page for each file.
///
/// The files link to each other by their names and headings, which a forge understands. The first definition of a link
/// counts, so the definitions of `_guide.md` lead to the pages of this module.
macro_rules! guides {
    ($($(#[$when:meta])? $page:ident = $file:literal),* $(,)?) => {$(
        $(#[$when])?
        #[doc = include_str!("_guide.md")]
        #[doc = include_str!($file)]
        pub mod $page {}
    )*};
}

guides! {
    service = "../docs/service.md",
    choosing = "../docs/choosing.md",
    // The examples of this guide, and of two others, are compiled with the package that they use.
    #[cfg(not(doctest))]
    plans = "../docs/plans.md",
    budgets = "../docs/budgets.md",
    fairness = "../docs/fairness.md",
    #[cfg(not(doctest))]
    http = "../docs/http.md",
    #[cfg(not(doctest))]
    following = "../docs/following.md",
    numbers = "../docs/numbers.md",
    jobs = "../docs/jobs.md",
    reservations = "../docs/reservations.md",
    transactions = "../docs/transactions.md",
    testing = "../docs/testing.md",
    sql = "../docs/sql.md",
    operating = "../docs/operating.md",
    poolers = "../docs/poolers.md",
    scaling = "../docs/scaling.md",
    citus = "../docs/citus.md",
    benchmarks = "../docs/benchmarks.md",
    compare = "../docs/compare.md",
    guarantees = "../docs/guarantees.md",
    design = "../DESIGN.md",
    security = "../SECURITY.md",
}

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
