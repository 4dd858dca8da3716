//! What the answers mean.

use super::{Client, Sent};
use crate::history::population::Population;
use crate::history::request::{Ask, Wrong};
use crate::history::state::{Guard, Outcome};
use crate::wire::Reply;

/// Uniques kept for a `cas` to come.
const UNIQUES_MAX: usize = 32;

impl Client<'_> {
    /// Takes one reply; `at` is the request whose turn it is.
    pub(super) fn answer(&mut self, at: &mut usize, reply: Reply<'_>) -> Result<(), String> {
        let from = *at;
        let last = (self.batch.iter().skip(from))
            .position(|sent| !matches!(sent.ask, Ask::Get { is_last: false, .. }))
            .map_or(from, |keys| from + keys);
        let sent = self.batch[from];
        let is_read = matches!(sent.ask, Ask::Get { .. } | Ask::GetAndTouch(_));
        match reply {
            Reply::Value { key: name, .. } if is_read => {
                let asked = (from..=last).find(|at| {
                    let sent = &self.batch[*at];
                    sent.found.is_none() && self.shared.all.text.is(name, sent.key.into())
                });
                let at = asked.ok_or_else(|| self.misfit(&sent, reply))?;
                let outcome = self.value(self.batch[at], reply)?;
                self.batch[at].found = Some(outcome);
            }
            Reply::Meta { data: Some(_), .. } => {
                let outcome = self.value(sent, reply)?;
                self.end(sent, outcome);
                *at += 1;
            }
            Reply::End | Reply::ServerError(_) if is_read => {
                if let Reply::ServerError(line) = reply {
                    self.counts.server_error(line);
                }
                for at in from..=last {
                    let sent = self.batch[at];
                    self.counts.misses += u64::from(sent.found.is_none());
                    self.end(sent, sent.found.unwrap_or(Outcome::nothing(sent.ask.name())));
                }
                *at = last + 1;
            }
            _ => {
                if let Reply::ServerError(line) = reply {
                    self.counts.server_error(line);
                }
                let outcome = sent.ask.answered(sent.key, reply);
                let outcome = outcome.ok_or_else(|| self.misfit(&sent, reply))?;
                *at += 1;
                self.end(sent, outcome);
            }
        }
        Ok(())
    }

    fn misfit(&self, sent: &Sent, reply: Reply<'_>) -> String {
        let key = self.shared.all.text.show(sent.key.into());
        let said: String = format!("{reply:?}").chars().take(200).collect();
        format!("a reply that fits no {} of {key}: {said}", sent.ask.name())
    }

    /// What a value means.
    fn value(&mut self, sent: Sent, reply: Reply<'_>) -> Result<Outcome, String> {
        let (outcome, unique) = match sent.ask.returned(&self.shared.all, sent.key, reply) {
            Ok(found) => found,
            Err(Wrong::Reply) => return Err(self.misfit(&sent, reply)),
            Err(Wrong::Value(what)) => {
                let (key, name) = (self.shared.all.text.show(sent.key.into()), sent.ask.name());
                self.shared.wrong(format!(
                    "{key} (key {}): the value that {name} returned {what}",
                    sent.key
                ));
                return Ok(Outcome::nothing(name));
            }
        };
        self.counts.hits += 1;
        if let Guard::Is(content) | Guard::Marked(content, _) = outcome.guard
            && unique != 0
            && self.uniques.len() < UNIQUES_MAX
            && Population::class(sent.key).is_replaced_by_cas()
        {
            self.uniques.push((sent.key, content, unique));
        }
        Ok(outcome)
    }
}
