//! A case: a sentence, the clause it checks, the features it needs, and the code that finds out.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use stockade_core::Feature;

use crate::Kit;

/// What a case comes to.
pub type Verdict<T = ()> = Result<T, Stop>;

/// How a case is run: with a kit of its own.
pub type CaseBody = fn(Kit) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// Timeout of a case that sets none of its own: short enough to find a hang, long enough for a slow host.
const DEFAULT_CASE_TIMEOUT: Duration = Duration::from_secs(180);

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// What is to hold, as a sentence.
    pub name: &'static str,
    /// The clause that asks for it.
    pub clause: &'static str,
    /// The features without which there is nothing to check.
    pub needs: &'static [Feature],
    /// Whether it is about walls: it must fail where there are none.
    pub isolation: bool,
    /// A case that takes longer has failed.
    pub limit: Duration,
    /// Finds out.
    pub run: CaseBody,
}

impl Case {
    /// A case that needs nothing and is not about walls.
    pub const fn new(name: &'static str, clause: &'static str, run: CaseBody) -> Self {
        Self { name, clause, needs: &[], isolation: false, limit: DEFAULT_CASE_TIMEOUT, run }
    }

    /// It needs these features.
    #[must_use]
    pub const fn needs(mut self, needs: &'static [Feature]) -> Self {
        self.needs = needs;
        self
    }

    /// It is about walls.
    #[must_use]
    pub const fn isolation(mut self) -> Self {
        self.isolation = true;
        self
    }

    /// It may take this many seconds.
    #[must_use]
    pub const fn within(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.clause)
    }
}

/// Why a case ended before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// What was expected and what was seen.
    Failed(String),
    /// It turned out to need this feature. If the backend declares it, that is a failure.
    Lacking(Feature),
    /// The host or the subject offers no way to find out.
    Unfit(String),
}

impl Stop {
    /// A failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }
}

impl From<stockade_core::Error> for Stop {
    fn from(error: stockade_core::Error) -> Self {
        let mut message = format!("unexpected error [{}]: {error}", error.code());
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            message.push_str(&format!(": {inner}"));
            cause = inner.source();
        }
        Self::Failed(message)
    }
}

macro_rules! failed_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Stop {
            fn from(error: $error) -> Self {
                Self::Failed(format!("the kit could not go on: {error}"))
            }
        }
    )*};
}

failed_from!(
    std::io::Error,
    rustix::io::Errno,
    serde_json::Error,
    stockade_core::NameError,
    stockade_core::PathError,
    tokio::task::JoinError
);

/// One case of the registry.
macro_rules! case {
    ($name:literal, $clause:literal, $run:path) => {
        $crate::Case::new($name, $clause, |kit| Box::pin($run(kit)))
    };
}

/// Stops the case unless the condition holds; the message says what was expected and what was seen.
macro_rules! check {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Stop::Failed(format!($($message)+)));
        }
    };
}

/// Stops the case unless what was seen is what was expected.
macro_rules! same {
    ($what:expr, $seen:expr, $expected:expr) => {
        // A match, so that what the expressions borrow from lives long enough.
        match (&$seen, &$expected) {
            (seen, expected) if seen == expected => {}
            (seen, expected) => {
                let what = $what;
                let message = format!("{what}: expected {expected:?}, saw {seen:?}");
                return Err($crate::Stop::Failed(message));
            }
        }
    };
}

pub(crate) use {case, check, same};
