//! The ways in which a program is run.

use crate::artifacts;

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The program runs without uncopy.
    Plain,
    /// The default options, but eliding begins with the first byte and every large allocation is a block.
    Auto,
    /// The default options, except that eliding begins with the first byte: allocation sites get
    /// blocks once they were seen to carry data.
    Learning,
    /// The default options, unchanged.
    Default,
    /// The default options from one page up, with slices of trials so short that eliding and
    /// lending begin and end all the time.
    Sliced,
    /// Everything legal is elided, from one page up.
    Always,
    /// Everything legal is elided, as on kernels that cannot move pages: pages are dropped and copied.
    WithoutMove,
    /// The block heap without any elision.
    Never,
    /// The library is loaded, and told to do nothing.
    Off,
    /// Everything legal is elided, and streams to other programs in this mode may be lanes.
    Lanes,
    /// Recorded from one page up, with every input sampled that can be.
    Recorded,
}

impl Mode {
    /// The two modes for programs other than the test programs.
    pub const FOR_APPLICATIONS: [Self; 2] = [Self::Always, Self::Auto];
    /// The modes that every scenario runs in.
    pub const FOR_SCENARIOS: [Self; 3] = [Self::Always, Self::Auto, Self::WithoutMove];

    /// The mode of the server behind a proxy in this mode: plain, unless lanes connect the two.
    #[must_use]
    pub fn backend(self) -> Self {
        if self == Self::Lanes { self } else { Self::Plain }
    }

    /// The mode in effect: [`Mode::Plain`] when `UNCOPY_TEST_PLAIN=1`.
    #[must_use]
    pub fn effective(self) -> Self {
        if artifacts::plain_only() { Self::Plain } else { self }
    }

    /// Option variables of the mode.
    pub(crate) const fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Plain | Self::Default => &[],
            Self::Auto => &[("UNCOPY_BEGIN_AFTER", "0"), ("UNCOPY_HEAP", "on")],
            Self::Learning => &[("UNCOPY_BEGIN_AFTER", "0")],
            Self::Sliced => &[
                ("UNCOPY_SLICE_MS", "4"),
                ("UNCOPY_MIN_SIZE", "4096"),
                ("UNCOPY_BEGIN_AFTER", "0"),
                ("UNCOPY_HEAP", "on"),
            ],
            Self::Always | Self::Recorded => &[("UNCOPY_POLICY", "always"), ("UNCOPY_MIN_SIZE", "4096")],
            Self::WithoutMove => {
                &[("UNCOPY_POLICY", "always"), ("UNCOPY_MIN_SIZE", "4096"), ("UNCOPY_MOVE", "off")]
            }
            Self::Lanes => {
                &[("UNCOPY_POLICY", "always"), ("UNCOPY_MIN_SIZE", "4096"), ("UNCOPY_LANES", "all")]
            }
            Self::Never => &[("UNCOPY_POLICY", "never"), ("UNCOPY_HEAP", "on")],
            Self::Off => &[("UNCOPY_OFF", "1")],
        }
    }
}
