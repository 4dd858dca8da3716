//! Finding what is stored for a request.

use super::{Asked, Proxy};
use crate::head::Head;
use crate::key::Target;
use crate::vary::{VariantId, Variants, variant_key};
use pumice::{Access, Lookup, Object, Permits};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_net::Share;
use std::convert::Infallible;

/// A stored response, of a large one all but the body.
pub(super) struct Stored<B> {
    pub(super) object: Object<B>,
    /// Under which it was read from flash.
    pub(super) share: Option<Share>,
    pub(super) variant: Option<VariantId>,
}

impl<B: Buffer> Stored<B> {
    /// Its head, if it is what was looked up.
    pub(super) fn head(&self, target: &Target) -> Option<Head<'_>> {
        head_of(&self.object, target, self.variant)
    }

    /// The same for another holder, who waits and so pins nothing.
    pub(super) fn detached(&self) -> Self {
        let mut object = self.object.clone();
        object.detach();
        Self {
            object,
            share: None,
            variant: self.variant,
        }
    }
}

pub(super) fn head_of<'o, B: Buffer>(
    object: &'o Object<B>,
    target: &Target,
    variant: Option<VariantId>,
) -> Option<Head<'o>> {
    Head::decode(object.head(), object.value_len() as u64).filter(|head| head.is_for(target, variant))
}

/// What is stored for a request.
pub(super) struct Finding<B> {
    pub(super) stored: Option<Stored<B>>,
    /// The variants of the URL.
    pub(super) variants: Option<Variants>,
}

/// Lends from the budget for answers.
struct Lent<'a, D: Device + Clone>(&'a Proxy<D>);

impl<D: Device + Clone> Permits for Lent<'_, D> {
    type Permit = Share;
    type Refusal = Infallible;

    async fn take(&mut self, bytes: usize) -> Result<Share, Infallible> {
        Ok(self.0.shared.budgets.output.take(bytes).await)
    }
}

impl<D: Device + Clone> Proxy<D> {
    /// What is stored for a request whose fields are clean.
    pub(super) async fn find(&self, asked: &Asked, looked_up: Option<Lookup<D::Buf>>) -> Finding<D::Buf> {
        let mut finding = Finding {
            stored: None,
            variants: None,
        };
        let looked_up = looked_up.unwrap_or_else(|| self.cache.lookup(&self.cx, &asked.key, Access::Count));
        let Some((object, share)) = self.read(&asked.key, looked_up).await else {
            return finding;
        };
        let stored = if object.head().is_empty() {
            let list = Variants::decode(&object.to_vec());
            drop((object, share));
            let chosen = list
                .as_ref()
                .and_then(|list| list.choose(&asked.target, &asked.fields));
            finding.variants = list;
            let Some(id) = chosen else { return finding };
            let key = variant_key(&id);
            let looked_up = self.cache.lookup(&self.cx, &key, Access::Count);
            let read = self.read(&key, looked_up).await;
            read.map(|(object, share)| Stored {
                object,
                share,
                variant: Some(id),
            })
        } else {
            Some(Stored {
                object,
                share,
                variant: None,
            })
        };
        finding.stored = stored.filter(|stored| stored.head(&asked.target).is_some());
        finding
    }

    /// What a lookup has found, or leads to.
    async fn read(&self, key: &[u8], found: Lookup<D::Buf>) -> Option<(Object<D::Buf>, Option<Share>)> {
        let (object, share) = match found {
            Lookup::Known(object) => (object, None),
            Lookup::Read(fetch) => {
                let mut lent = Lent(self);
                let read = self.cache.read(&self.cx, key, fetch, Access::Count, &mut lent);
                let Ok(read) = read.await;
                read
            }
        };
        object.map(|object| (object, share))
    }
}
