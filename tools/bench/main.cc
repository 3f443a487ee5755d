// ckptd-bench: what ckptd costs on this machine, against what the machine can do.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "daemon/base/errors.h"
#include "tools/bench/cases.h"
#include "tools/bench/gpu.h"
#include "tools/bench/measure.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace ckptd::bench {

namespace {

template <absl::StatusOr<Line> (*kCase)(const Options&)>
absl::StatusOr<Lines> One(const Options& options) {
  absl::StatusOr<Line> line = kCase(options);
  return line.ok() ? absl::StatusOr<Lines>(Lines{*line}) : line.status();
}

}  // namespace

std::span<const Case> Cases() {
  static constexpr Case kCases[] = {
      {"copy.crc", "GB/s of the fused copy and CRC32C; memcpy", One<CopyCrc>},
      {"save.blocked", "ms inside ckpt_save; 1 ms + 0.8 us a tensor, the contract of step()", One<SaveBlocked>},
      {"save.captured", "GB/s from ckpt_save to the open gate; memcpy into populated shared memory", One<SaveCaptured>},
      {"save.captured.stays", "the same where all memory is promised to stay mapped (CKPT_STAYS)",
       One<SaveCapturedStays>},
      {"save.captured.alone", "the same where nothing is flushed behind it; memcpy, of which the mark is 1.15 times",
       One<SaveCapturedAlone>},
      {"flush.durable", "GB/s from ckpt_save to durable; one plain O_DIRECT sequential write with fsync",
       One<FlushDurable>},
      {"restore.region", "GB/s of a restore out of memory; memcpy", One<RestoreRegion>},
      {"restore.map", "ms of ckpt_restore_map of up to 4 GiB; 10 ms, the contract", One<RestoreMap>},
      {"restore.storage", "GB/s of a restore from disk, region lost; plain O_DIRECT sequential read",
       One<RestoreStorage>},
      {"agent.start", "ms from fork to ready; fork, exec and wait of /bin/true", One<AgentStart>},
      {"adopt", "ms to ready after kill -9 with two slots of --bytes (4 GiB); start with an empty region", One<Adopt>},
      {"commit", "ms from ckpt_save of 64 KiB to durable; the same files and fsyncs done plainly", One<Commit>},
      {"register", "ms inside ckpt_register of 20,000 tensors; their header's text. Until ready; memory made plainly",
       RegisterLayout},
#ifdef CKPTD_GRPC
      {"control.status", "answers a second to ckptctl's status; round trips over a UNIX socket", One<ControlStatus>},
      {"save.protected",
       "GB/s from ckpt_save until another node has it, both on this machine, by gRPC and TCP (.tcp); iperf3",
       SaveProtected},
      {"save.captured.copies",
       "GB/s of the capture while another node keeps copies, by gRPC and TCP (.tcp); while none does",
       SaveCapturedCopies},
      {"restore.replica", "GB/s of a restore on a node that came back empty, from the other node's memory; iperf3",
       RestoreReplica},
      {"restore.parity", "GB/s that such a node receives to rebuild its image, 3+1; iperf3", RestoreParity},
      {"copies", "GB/s of an image from agent to agent over loopback, each way; memcpy, iperf3, ucx_perftest", Copies},
#endif
      {"agent.rest", "% of one core that the agent takes while nobody saves; 0.1 %", One<AgentRest>},
      {"agent.memory", "MiB of the agent beside the region, after a save; 30 MiB", One<AgentMemory>},
      {"erasure.encode", "GB/s of images into parity: 4+2, 4+1, and 4+2 as chunks come; ISA-L's ec_encode_data alone",
       ErasureEncode},
      {"erasure.rebuild", "GB/s of lost images rebuilt, 4+2 and 4+1; the same", ErasureRebuild},
      {"protocol", "ms and MiB in which the agents of 10,000 ranks agree, most of them simulated; the contract",
       Protocol},
      {"coordinator", "ms, CPU and MiB of the coordinator with 64 and 1,250 nodes that keep copies, its links included",
       Coordinator},
      {"gpu-d2h-push", "GB/s of a capture that this process copies; 12 x 1 GiB of cuMemcpyDtoHAsync", GpuPush, true},
      {"gpu-d2h-pull", "GB/s of a capture that ckptd-copier copies; the same", GpuPull, true},
      {"gpu-blocked", "ms in ckpt_save and the gate (host), and of the gate on the stream; 1 ms", GpuBlocked, true},
      {"gpu-restore", "GB/s of a restore from the region to the GPU; 12 x 1 GiB of cuMemcpyHtoDAsync", GpuRestore,
       true},
  };
  return kCases;
}

namespace {

constexpr int kUsage = 2;
constexpr char kNeedsGpu[] =
    "run it on a machine with an NVIDIA GPU, where libcuda.so.1 of driver 525 or later is found";

void PrintHelp() {
  std::puts(
      "usage: ckptd-bench CASE... [flags]\n"
      "       ckptd-bench all [flags]\n\n"
      "Measures ckptd against what this machine can do without it, both in turn in the same run. One JSON object a "
      "line:\nvalue and limit are medians of n, ratio is value / limit, spread the least and the greatest value.\n\n"
      "Cases (ours; the limit):");
  for (const Case& one : Cases()) std::printf("  %-20s %s\n", one.name, one.what);
  std::puts(
      "\nFlags:\n"
      "  --bytes SIZE     state of one rank, \"256MiB\" (by default each case has its own, up to 4 GiB;\n"
      "                   gpu-...: 12 GiB, or what GPU, memory and tmpfs have room for)\n"
      "  --tensors N      tensors of one rank\n"
      "  --ranks N        trainers of the job (1); copies: parts that are sent at once\n"
      "  --chunk SIZE     unit of checksums and flushes, the agent's region.chunk_bytes (auto)\n"
      "  --n N            measurements of each (5; gpu-...: 9, gpu-blocked: 30)\n"
      "  --dir DIR        on the disk to measure (/var/tmp)\n"
      "  --region DIR     on the tmpfs to use (/dev/shm)\n\n"
      "The agent is $CKPTD_BIN, else the ckptd beside this program; it runs with folders of its own, which are "
      "removed.\n"
      "Exit: 0 all ran, 1 a case failed or was interrupted, 2 usage. A case without room, and without a "
      "GPU\none that `all` would run on it, says {\"skipped\":\"why\"}.");
}

const Case* Find(const std::string& name) {
  auto cases = Cases();
  auto found = std::find_if(cases.begin(), cases.end(), [&](const Case& one) { return name == one.name; });
  return found == cases.end() ? nullptr : &*found;
}

// Whether it may run. `named`: it was asked for, so that a missing GPU is an error, and not merely told.
bool HasWhatItNeeds(const Case& one, bool named, bool* good) {
  absl::Status found = one.needs_gpu ? Gpu::Found() : absl::OkStatus();
  const std::string why(found.message());
  if (!found.ok() && named) {
    std::fprintf(stderr, "ckptd-bench: %s: %s\nnext: %s\n", one.name, why.c_str(), kNeedsGpu);
    *good = false;
  } else if (!found.ok()) {
    Print(FormatLine({.name = one.name, .unit = "", .what = "", .comparison = {}, .skipped = why}));
  }
  return found.ok();
}

bool RunOne(const Case& one, const Options& options) {
  absl::StatusOr<Lines> lines = one.run(options);
  for (size_t i = 0; lines.ok() && i < lines->size(); ++i) Print(FormatLine((*lines)[i]));
  if (lines.ok()) return true;
  std::fprintf(stderr, "ckptd-bench: %s: %s\nnext: %s\n", one.name, std::string(lines.status().message()).c_str(),
               InfoOf(CodeOf(lines.status())).next_step);
  return false;
}

int Usage(const std::string& sentence) {
  std::fprintf(stderr, "ckptd-bench: %s\nckptd-bench --help lists cases and flags\n", sentence.c_str());
  return kUsage;
}

int Run(const std::vector<std::string>& words) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(words);
  if (!line.ok()) return Usage(std::string(line.status().message()));
  if (line->help) {
    PrintHelp();
    return 0;
  }
  std::vector<const Case*> chosen;
  const bool all = line->cases == std::vector<std::string>{"all"};
  if (all) {
    for (const Case& one : Cases()) chosen.push_back(&one);
  } else {
    for (const std::string& name : line->cases) {
      chosen.push_back(Find(name));
      if (chosen.back() == nullptr) return Usage("no case " + name);
    }
  }
  if (chosen.empty()) return Usage("which case?");
  CatchSignals();
  bool good = true;
  for (const Case* one : chosen) {
    if (HasWhatItNeeds(*one, !all, &good)) good = RunOne(*one, line->options) && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ckptd::bench

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // it has lines of its own for each handshake of a peer
  std::signal(SIGPIPE, SIG_IGN);                      // as an agent does
  return ckptd::bench::Run(std::vector<std::string>(argv + 1, argv + argc));
}
