//! Which machine this is, and since when it has been up.

use std::fs;
use std::io::Read as _;

/// Names the boot-time clock of this process: equal for two processes if and only if they read the same running clock.
///
/// Made of the kernel's boot id and of the time namespace, which may shift the clock. `None` where the system does not say.
pub fn boot_id() -> Option<String> {
    let boot = read_line("/proc/sys/kernel/random/boot_id")?;
    // Kernels before 5.6 have no time namespaces, and then none that could differ.
    let namespace = fs::read_link("/proc/self/ns/time")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_else(|_| "time:none".to_owned());
    Some(format!("{boot}/{namespace}"))
}

/// What is known of the machine that this process runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineIdentity {
    /// The installation: survives reboots, may be absent in containers.
    pub machine_id: Option<String>,
    /// The running kernel: the same in all containers of one machine.
    pub kernel_boot_id: Option<String>,
    /// The name, for people.
    pub name: String,
}

impl MachineIdentity {
    /// The machine that this process runs on.
    pub fn this() -> Self {
        let uname = rustix::system::uname();
        Self {
            machine_id: read_line("/etc/machine-id"),
            kernel_boot_id: read_line("/proc/sys/kernel/random/boot_id"),
            name: uname.nodename().to_string_lossy().into_owned(),
        }
    }

    /// Whether the two are one machine, as far as can be told: one running kernel, or one installation at two times.
    pub fn is_same_machine(&self, other: &Self) -> bool {
        let same = |a: &Option<String>, b: &Option<String>| a.is_some() && a == b;
        let nameless = self.machine_id.is_none() && other.machine_id.is_none();
        same(&self.kernel_boot_id, &other.kernel_boot_id)
            || same(&self.machine_id, &other.machine_id)
            || (nameless && self.name == other.name)
    }
}

/// A new random UUID, in the usual spelling.
pub(crate) fn random_uuid() -> String {
    let mut b = random_bytes();
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let n = u128::from_be_bytes(b);
    let hex = format!("{n:032x}");
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// Sixteen bytes that nobody else has.
pub(crate) fn random_bytes() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    let source = fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    // Without randomness two stores could get one identity: there is nothing safe to go on with.
    source.expect("/dev/urandom gives random bytes");
    bytes
}

fn read_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(machine: Option<&str>, boot: Option<&str>, name: &str) -> MachineIdentity {
        MachineIdentity {
            machine_id: machine.map(str::to_owned),
            kernel_boot_id: boot.map(str::to_owned),
            name: name.to_owned(),
        }
    }

    #[test]
    fn the_boot_id_names_kernel_and_time_namespace_and_stays_the_same() {
        let id = boot_id().expect("linux says which boot it is");
        assert_eq!(boot_id(), Some(id.clone()));
        assert!(id.contains("/time:"), "{id}");
    }

    #[test]
    fn containers_on_one_kernel_are_one_machine() {
        let a = host(Some("a"), Some("boot"), "web-1");
        let b = host(Some("b"), Some("boot"), "web-2");
        assert!(a.is_same_machine(&b));
    }

    #[test]
    fn a_rebooted_machine_is_still_itself() {
        let before = host(Some("a"), Some("boot-1"), "db");
        let after = host(Some("a"), Some("boot-2"), "db");
        assert!(before.is_same_machine(&after));
    }

    #[test]
    fn another_installation_is_another_machine_even_under_the_same_name() {
        let a = host(Some("a"), Some("boot-1"), "localhost");
        let b = host(Some("b"), Some("boot-2"), "localhost");
        assert!(!a.is_same_machine(&b));
        assert!(!a.is_same_machine(&host(None, None, "localhost")));
    }

    #[test]
    fn without_any_id_the_name_decides() {
        let a = host(None, Some("boot-1"), "db");
        assert!(a.is_same_machine(&host(None, Some("boot-2"), "db")));
        assert!(!a.is_same_machine(&host(None, Some("boot-2"), "web")));
    }
}
