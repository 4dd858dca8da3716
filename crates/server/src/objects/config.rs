//! What a server of objects is told, checked and complete.

use super::door::config::DoorConfig;
use crate::Flags;
use crate::host::config::{HostConfig, bytes, device, objective, secs, size};
use crate::settings::{Given, Layers};
use pumice::IndexKind;
use pumice::{AdmissionOptions, Durability, FlashWrite};
use pumice_flash::{LayoutError, LayoutName, LayoutOptions};
use pumice_nhc::Objective;
use pumice_trace::Size;
use std::path::PathBuf;

/// The longest time to live that can be asked for, in seconds: a year.
const TTL_SECS_MAX: u32 = 365 * 24 * 3600;
const FLUSH_INTERVAL_SECS_MAX: u32 = 86_400;
const FLUSH_INTERVAL_SECS: u32 = 5;

/// What a reply may promise, by name.
pub const DURABILITIES: [(&str, Durability); 3] = [
    ("process", Durability::Process),
    ("power", Durability::Power),
    ("off", Durability::Off),
];

/// The settings of a server.
#[derive(Debug)]
pub struct ServeConfig {
    /// Those of every server.
    pub host: HostConfig,
    /// The flash file or device.
    pub flash: PathBuf,
    /// Seconds after which what is in a block buffer alone is written; 0 = when its block is full.
    pub flush_interval_secs: u32,
    /// How much of it to use, if that was said.
    pub flash_size: Option<Size>,
    /// The file or device with copies of the flash, if there is to be one.
    pub performance_tier: Option<PathBuf>,
    /// How much of it to use, if that was said.
    pub performance_size: Option<Size>,
    /// What is to be best where reads are split; `None`: they are not.
    pub performance_objective: Option<Objective>,
    /// Block size in bytes, if that was said.
    pub block_size: Option<u64>,
    /// The layout of a new flash device, and what steers it.
    pub layout: LayoutOptions,
    /// Whether the layout was said.
    pub is_layout_given: bool,
    /// Whether anything was that steers one: policy, alpha or theta.
    pub is_policy_given: bool,
    /// Where mappings are; `None` where that is not said.
    pub index: Option<IndexKind>,
    /// When an object goes to flash.
    pub flash_write: FlashWrite,
    /// Which objects do, and how many bytes may be sent there.
    pub admission: AdmissionOptions,
    /// What a reply promises.
    pub durability: Durability,
    /// Those of its door.
    pub door: DoorConfig,
}

impl ServeConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`pumice_console::Usage`], for the first setting that makes no sense or asks for what is not built.
    pub fn resolve(layers: &Layers, flags: &Flags) -> anyhow::Result<Self> {
        let host = HostConfig::resolve(layers, flags)?;
        let flash = device(&layers.flash())?.unwrap_or_else(|| "pumice.flash".into());
        let door = DoorConfig::resolve(layers, host.max_connections, flags.backlog)?;
        Ok(Self {
            flush_interval_secs: secs(&layers.flush_interval(), FLUSH_INTERVAL_SECS_MAX)?
                .unwrap_or(FLUSH_INTERVAL_SECS),
            flash,
            flash_size: size(&layers.flash_size())?,
            performance_tier: performance_tier(layers)?,
            performance_size: size(&layers.performance_size())?,
            performance_objective: (layers.performance_objective().read(objective)?)
                .unwrap_or(Some(Objective::default())),
            block_size: block_size(&layers.block_size())?,
            layout: layout(layers, door.policy())?,
            is_layout_given: layers.layout().text()?.is_some(),
            is_policy_given: layers.policy().text()?.is_some()
                || layers.alpha().text()?.is_some()
                || layers.theta().text()?.is_some(),
            index: index(layers)?,
            flash_write: flash_write(layers)?,
            admission: admission(layers)?,
            durability: layers.durability().one_of(&DURABILITIES)?.unwrap_or_default(),
            door,
            host,
        })
    }
}

fn layout(layers: &Layers, usual_of_ripq: Option<&str>) -> anyhow::Result<LayoutOptions> {
    let named = |name: &str| {
        let layout = name.parse::<LayoutName>();
        layout.map_err(|_| format!("no such layout ({})", LayoutName::names()))
    };
    let layout = layers.layout().read(named)?.unwrap_or(LayoutName::Ripq);
    let (alpha, theta) = (layers.alpha().parse::<f64>()?, layers.theta().parse::<f64>()?);
    let given = layers.policy();
    let usual = usual_of_ripq.filter(|_| layout == LayoutName::Ripq);
    let options = LayoutOptions::new(layout, given.text()?.or(usual), alpha, theta);
    options.map_err(|error| {
        let what = error.to_string();
        match error {
            LayoutError::Alpha(_) => layers.alpha().wrong(&what),
            LayoutError::Theta(_) => layers.theta().wrong(&what),
            _ => layers.policy().wrong(&what),
        }
    })
}

/// When objects go to flash.
///
/// # Errors
/// Usage, for a time that makes no sense.
pub fn flash_write(layers: &Layers) -> anyhow::Result<FlashWrite> {
    let times = [
        ("insertion", FlashWrite::Insertion),
        ("eviction", FlashWrite::Eviction),
    ];
    Ok(layers.flash_write().one_of(&times)?.unwrap_or_default())
}

/// What is let onto flash.
///
/// # Errors
/// Usage, for a setting that makes no sense.
pub fn admission(layers: &Layers) -> anyhow::Result<AdmissionOptions> {
    Ok(AdmissionOptions {
        rule: layers.flash_admit().parse()?.unwrap_or_default(),
        budget: layers.flash_write_budget().parse()?,
        object_bytes_max: object_bytes_max(&layers.flash_admit_size_max())?,
        ttl_secs_min: secs(&layers.flash_admit_ttl_min(), TTL_SECS_MAX)?.unwrap_or(0),
        ..AdmissionOptions::default()
    })
}

fn performance_tier(layers: &Layers) -> anyhow::Result<Option<PathBuf>> {
    let tier = device(&layers.performance_tier())?;
    let size = layers.performance_size();
    if tier.is_none() && size.text()?.is_some() {
        return Err(size.wrong("of which device? --performance-tier is not given"));
    }
    Ok(tier)
}

/// Where mappings are to be; `None` is left to the budget.
fn index(layers: &Layers) -> anyhow::Result<Option<IndexKind>> {
    let kind = layers.index().read(|name| match IndexKind::from_name(name) {
        None if name != "auto" => Err(format!("no such index (auto, {})", IndexKind::names())),
        kind => Ok(kind),
    });
    kind.map(Option::flatten)
}

fn block_size(given: &Given<'_>) -> anyhow::Result<Option<u64>> {
    let bytes = bytes(given)?;
    match bytes {
        Some(bytes) if !bytes.is_power_of_two() || !(64 << 10..=256 << 20).contains(&bytes) => {
            Err(given.wrong("expected a power of two from 64KiB to 256MiB"))
        }
        bytes => Ok(bytes),
    }
}

fn object_bytes_max(given: &Given<'_>) -> anyhow::Result<u64> {
    match bytes(given)? {
        Some(0) => Err(given.wrong("nothing would be let onto flash")),
        bytes => Ok(bytes.unwrap_or(0)),
    }
}
