//! The field `Cache-Status` (RFC 9211).

use std::fmt;

/// Why a request went to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// The method is not answered from a cache.
    Method,
    /// Nothing is stored for the URL.
    UriMiss,
    /// Something is, but not for what the request has in the fields that the responses vary on.
    VaryMiss,
    /// What is stored could be used, but the request does not want it.
    Request,
    /// What is stored is stale.
    Stale,
}

impl Forward {
    /// As RFC 9211 names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Request => "request",
            Self::Stale => "stale",
        }
    }
}

/// What this cache did for a response; displayed as a member of the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Why the request was forwarded; `None` for a hit.
    pub forward: Option<Forward>,
    /// What the origin answered, where the client got something else.
    pub forward_status: Option<u16>,
    /// For how much longer the response is fresh, in seconds; negative where it is stale.
    pub ttl_secs: Option<i64>,
    /// Whether the response was stored.
    pub is_stored: bool,
    /// Whether the request waited for another one, and got its response (true) or had to be forwarded itself (false).
    pub collapsed: Option<bool>,
    /// A token: the tier of a hit, or why a response was not stored.
    pub detail: Option<&'static str>,
}

impl fmt::Display for CacheStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pumice")?;
        match self.forward {
            None => f.write_str("; hit")?,
            Some(reason) => write!(f, "; fwd={}", reason.name())?,
        }
        if let Some(status) = self.forward_status {
            write!(f, "; fwd-status={status}")?;
        }
        if let Some(secs) = self.ttl_secs {
            write!(f, "; ttl={secs}")?;
        }
        if self.is_stored {
            f.write_str("; stored")?;
        }
        match self.collapsed {
            None => {}
            Some(true) => f.write_str("; collapsed")?,
            Some(false) => f.write_str("; collapsed=?0")?,
        }
        self.detail
            .map_or(Ok(()), |detail| write!(f, "; detail={detail}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NotStored;

    #[test]
    fn it_is_a_structured_field() {
        let hit = CacheStatus {
            ttl_secs: Some(3540),
            detail: Some("flash"),
            ..CacheStatus::default()
        };
        assert_eq!(hit.to_string(), "Pumice; hit; ttl=3540; detail=flash");
        let miss = CacheStatus {
            forward: Some(Forward::Stale),
            forward_status: Some(304),
            ttl_secs: Some(-3),
            is_stored: true,
            collapsed: Some(false),
            detail: Some(NotStored::SetCookie.name()),
        };
        let text = miss.to_string();
        assert_eq!(
            text,
            "Pumice; fwd=stale; fwd-status=304; ttl=-3; stored; collapsed=?0; detail=set-cookie"
        );
        for text in [text, hit.to_string()] {
            let list: sfv::List = sfv::Parser::new(&text).parse().unwrap();
            assert_eq!(list.len(), 1);
        }
    }
}
