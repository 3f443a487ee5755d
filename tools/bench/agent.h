// A real ckptd as a process of its own, with sockets, region and storage in temporary folders that go with it.
#ifndef CKPTD_TOOLS_BENCH_AGENT_H_
#define CKPTD_TOOLS_BENCH_AGENT_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"
#include "tools/bench/options.h"

namespace ckptd::bench {

// What of a job goes onto the disk, by itself; a wait for a durable step puts that one there all the same.
enum class Storage { kEveryStep, kNothing, kEveryStepForEver };
// Whether it has a socket for ckptctl.
enum class Admin { kOff, kOn };

// One of several nodes that keep copies for each other, all of them on loopback.
struct Peering {
  std::string node;
  std::string address;  // its own
  std::string members;  // peers.members
  std::string storage;  // of all; empty: this one makes it, and removes it
  std::string scheme;   // of the section: "copies = 2"
  std::string bulk;     // peers.bulk
};

// Ends with the object, without a drain: what it stored is thrown away.
class Agent {
 public:
  // Not started yet. The program is $CKPTD_BIN, else the ckptd beside this one.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Agent>> Make(const Options& options,
                                                                   Storage storage = Storage::kEveryStep,
                                                                   Admin admin = Admin::kOff, Peering peering = {});
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  // Returns when the agent says that it serves (sd_notify): the seconds since fork.
  [[nodiscard]] absl::StatusOr<double> Start();
  void Kill();              // SIGKILL, reaped; nothing when it does not run
  void LoseRegion() const;  // as after a reboot

  [[nodiscard]] std::string socket() const { return base_ + "/s"; }
  [[nodiscard]] std::string admin_socket() const { return base_ + "/admin.sock"; }
  [[nodiscard]] pid_t pid() const { return pid_; }  // -1: it does not run
  [[nodiscard]] const std::string& storage() const { return storage_; }
  [[nodiscard]] const std::string& region() const { return region_; }

 private:
  Agent(Storage what, Admin admin, Peering peering) : what_(what), admin_(admin), peering_(std::move(peering)) {}
  [[nodiscard]] std::string PeersSection() const;
  [[nodiscard]] absl::Status WriteConfig() const;
  [[nodiscard]] absl::Status AwaitReady();
  [[nodiscard]] std::string LogTail() const;

  const Storage what_;
  const Admin admin_;
  const Peering peering_;
  std::string program_;
  std::string base_;     // sockets, configuration, log
  std::string region_;   // on the tmpfs
  std::string storage_;  // on the disk
  uint64_t chunk_ = 0;   // of the region; 0 = its own choice
  UniqueFd notify_;
  pid_t pid_ = -1;
};

// Seconds of fork, exec and wait of `argv`: what starting any program costs here.
[[nodiscard]] absl::StatusOr<double> TimeProgram(std::vector<std::string> argv);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_AGENT_H_
