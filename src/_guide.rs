//! The guides of the repository's folder `docs` and its design notes, as pages. This module exists in the documentation
//! only.

/// One page for each file.
///
/// The files link to each other by their names, which a forge understands. The first definition of a link counts, so
/// the definitions here lead to the pages of this module.
macro_rules! guides {
    ($($(#[$when:meta])? $page:ident = $file:literal),* $(,)?) => {$(
        $(#[$when])?
        #[doc = "[README.md]: crate"]
        #[doc = "[DESIGN.md]: crate::_guide::design"]
        #[doc = "[benchmarks.md]: crate::_guide::benchmarks"]
        #[doc = "[budgets.md]: crate::_guide::budgets"]
        #[doc = "[choosing.md]: crate::_guide::choosing"]
        #[doc = "[citus.md]: crate::_guide::citus"]
        #[doc = "[compare.md]: crate::_guide::compare"]
        #[doc = "[fairness.md]: crate::_guide::fairness"]
        #[doc = "[following.md]: crate::_guide::following"]
        #[doc = "[guarantees.md]: crate::_guide::guarantees"]
        #[doc = "[http.md]: crate::_guide::http"]
        #[doc = "[operating.md]: crate::_guide::operating"]
        #[doc = "[plans.md]: crate::_guide::plans"]
        #[doc = "[poolers.md]: crate::_guide::poolers"]
        #[doc = "[reservations.md]: crate::_guide::reservations"]
        #[doc = "[scaling.md]: crate::_guide::scaling"]
        #[doc = "[security.md]: crate::_guide::security"]
        #[doc = "[sql.md]: crate::_guide::sql"]
        #[doc = "[testing.md]: crate::_guide::testing"]
        #[doc = include_str!($file)]
        pub mod $page {}
    )*};
}

guides! {
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
    reservations = "../docs/reservations.md",
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
