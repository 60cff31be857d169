//! The commands that come next, so that they can be pasted.

use idemp_core::Reason;

use super::Args;
use crate::config::Config;
use crate::shell::Line;

/// Lists what was given up.
pub(super) fn list(args: &Args, config: Option<&Config>) -> String {
    let mut line = Line::new("idemp dlq list");
    if args.dlq.is_of(config) {
        args.config.say_again(&mut line);
    } else {
        args.dlq.say_again(&mut line);
    }
    line.into()
}

/// Sends what an interruption has made dead letters.
pub(super) fn replay(args: &Args, config: Option<&Config>) -> String {
    let mut line = Line::new("idemp replay");
    line.option("--reason", Reason::Shutdown.code());
    args.config.say_again(&mut line);
    if !args.dlq.is_of(config) {
        args.dlq.say_again(&mut line);
    }
    args.target.say_again(&mut line);
    line.into()
}
