//! Names that come from the host or from a client.
//!
//! All of them are opaque text, and all of them are copied often, so each is a shared string of
//! its own type: a partition can never be passed where an actor is meant.

use std::{borrow::Borrow, fmt, sync::Arc};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps the text as it is.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}

name! {
    /// Names the tenant whose log this is. It comes from authentication, never from the wire.
    PartitionId
}

name! {
    /// The authenticated identity that makes a request.
    ActorId
}

name! {
    /// One durable replica, bound to one actor within a partition (§2.1).
    ClientId
}

name! {
    /// Names the continuity of a partition's log (§2.1). A restore changes it, so that nobody
    /// applies history of one timeline on top of another.
    LogEpoch
}
