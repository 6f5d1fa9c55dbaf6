//! The process that a request of the kernel names.

use fuser::Request;
use std::fs;

/// The user, the group and the process of a request.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub uid: u32,
    pub gid: u32,
    pid: u32,
}

impl Caller {
    /// The caller of a request.
    pub(crate) fn of(request: &Request) -> Self {
        Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }

    /// Whether writing clears set-user-ID and set-group-ID. The kernel checks whether the process
    /// has `CAP_FSETID`, but `fuser` 0.18 drops that result except for plain writes; a user other
    /// than root does not have it.
    pub(crate) fn clears_set_ids(self) -> bool {
        self.uid != 0
    }

    /// Whether set-group-ID stays when the caller changes permissions of a node of this group. The
    /// kernel checks that as well, and `fuser` 0.18 drops the result. A process that this one may
    /// not look at counts as no member.
    pub(crate) fn keeps_set_group_id(self, group: u32) -> bool {
        let status = || fs::read(format!("/proc/{}/status", self.pid));
        let is_listed = || status().is_ok_and(|text| has_group(&String::from_utf8_lossy(&text), group));
        self.uid == 0 || self.gid == group || is_listed()
    }
}

/// Whether the status of a process lists this group.
fn has_group(status: &str, group: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|number| number.parse::<u32>() == Ok(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_the_status_of_a_process() {
        let status = "Name:\tGroups: 7\nGid:\t8\t8\t8\t8\nGroups:\t4 24 100 \nNStgid:\t27\n";
        assert!([4, 24, 100].into_iter().all(|group| has_group(status, group)));
        assert!([7, 8, 10, 27].into_iter().all(|group| !has_group(status, group)));
        assert!(!has_group("", 0));
    }

    #[test]
    fn supplementary_groups_of_a_caller_count() {
        let own = Caller { uid: 1, gid: 2, pid: std::process::id() };
        let groups = rustix::process::getgroups().unwrap();
        assert!(groups.iter().all(|group| own.keeps_set_group_id(group.as_raw())));
        assert!(own.keeps_set_group_id(2) && !own.keeps_set_group_id(u32::MAX));
        let hidden = Caller { pid: 0, ..own };
        assert!(hidden.keeps_set_group_id(2) && !hidden.keeps_set_group_id(3));
        assert!(Caller { uid: 0, ..hidden }.keeps_set_group_id(3));
    }
}
