#include "tools/ckptctl/command.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

const Flag kAgent = {"--agent", "SOCKET",
                     "admin socket (default: $CKPTD_ADMIN_SOCKET, beside $CKPTD_SOCKET, "
                     "/run/ckptd/admin.sock, the user's own agent)"};
const Flag kOutput = {"-o", "table|json", "how to print"};
const Flag kRankFlag = {"--rank", "R", "only this rank"};
const Flag kTo = {"--to", "DIR", "where the files go; made where it is missing"};

// A job: what is there, and whether it is safe.
std::vector<Command> LookingCommands() {
  return {
      {"status",
       "[JOB]",
       "agent, region, storage, jobs and their newest steps",
       "Exit code 1 when the agent cannot do its work; each problem is listed with its next step.",
       0,
       1,
       {{"-w", "", "redraw every second"}, kOutput, kAgent},
       &RunStatus},
      {"list",
       "[JOB]",
       "the steps that can be restored",
       "Exit code 1 when the storage could not be read: what it has is left out then, and standard error says why.",
       0,
       1,
       {{"--off-lineage", "", "also steps that a roll-back left behind"}, kOutput, kAgent},
       &RunList},
      {"inspect",
       "JOB[@STEP] | PATH",
       "tensors: name, dtype, shape, shard, bytes",
       "A word with a slash in it is a path: of a safetensors file or of a directory of them. No agent is asked then.",
       1,
       1,
       {kRankFlag, kOutput, kAgent},
       &RunInspect},
      {"verify",
       "JOB[@STEP] | PATH",
       "read everything again and check it, wherever copies are",
       "PATH is a step's directory on storage, or one of its files. Exit code 1 when something is damaged, and names\n"
       "all that is; or when the directory has no manifest: such a step was never committed.",
       1,
       1,
       {kOutput, kAgent},
       &RunVerify},
      {"flush",
       "JOB [--wait]",
       "make the newest captured step durable",
       "Flushing runs by itself; this tells how far it is. With --wait: exit code 1 when the step is not durable in "
       "time.",
       1,
       1,
       {{"--wait", "", "answer when it is durable"},
        {"--timeout", "TIME", "how long to wait (default 10m)"},
        kOutput,
        kAgent},
       &RunFlush},
      {"drain",
       "",
       "make all jobs durable, then refuse new saves",
       "For maintenance. The agent takes saves again after a restart. Exit code 1 when not all is durable in time.",
       0,
       0,
       {{"--timeout", "TIME", "how long to wait (default 10m)"}, kOutput, kAgent},
       &RunDrain},
  };
}

// One step: taken out, kept, deleted.
std::vector<Command> StepCommands() {
  return {
      {"restore",
       "JOB[@STEP] --to DIR",
       "plain safetensors files from the best source",
       "The files appear when all of them are complete and match the checksums of the save; nothing is overwritten.",
       1,
       1,
       {kTo, kRankFlag, kOutput, kAgent},
       &RunRestore},
      {"trace", "JOB@STEP", "time-line of one save", "", 1, 1, {kOutput, kAgent}, &RunTrace},
      {"salvage",
       "REGION_DIR [JOB[@STEP]] --to DIR",
       "the same as restore, from memory, with no agent running",
       "REGION_DIR is region.dir of the agent that is gone: /run/ckptd/region, or /dev/shm/ckptd-UID of a user.\n"
       "Writes DIR/JOB/STEP/FILES: of each job the newest snapshot that is whole in this region.",
       1,
       2,
       {kTo, {"--all", "", "every snapshot that is there, whole or not"}, kOutput},
       &RunSalvage},
      {"pin", "JOB@STEP", "keep a step until it is unpinned", "", 1, 1, {kOutput, kAgent}, &RunPin},
      {"unpin", "JOB@STEP", "let retention decide again", "", 1, 1, {kOutput, kAgent}, &RunUnpin},
      {"rm",
       "JOB@STEP",
       "delete one step from storage",
       "Its successor is read back and checked first. The newest good step is refused.",
       1,
       1,
       {{"--force", "", "although an agent that is gone coordinates the job; a run that still lives there is cut off"},
        {"--timeout", "TIME", "how long to wait (default 10m)"},
        kOutput,
        kAgent},
       &RunRm},
      {"gc",
       "[JOB] [--dry-run] [--force]",
       "apply [retention] now, and remove what dead writers left",
       "With JOB named, memory that nobody uses any more is given back too, if all of it is on storage; so is what\n"
       "this node holds for other nodes' ranks of it, once the job has ended.\n"
       "Exit code 1 when a job could not be looked at; standard error says why.",
       0,
       1,
       {{"--dry-run", "", "only say what would go"},
        {"--force", "", "what is held for other nodes goes, although JOB may run, or storage lacks a step of it"},
        {"--timeout", "TIME", "how long to wait (default 10m)"},
        kOutput,
        kAgent},
       &RunGc},
  };
}

// Without a job.
std::vector<Command> OtherCommands() {
  return {
      {"plan",
       "--scheme S --nodes N --lost L",
       "what copies or parity on other nodes survive and cost",
       "To decide before memory is bought; no agent is asked, and none need run. Tells how likely it is that memory\n"
       "alone survives when L nodes are lost at once (else storage is what is left), what a node needs of memory and\n"
       "of network, and what is read to have a lost node's snapshot again. Schemes:\n"
       "  none    nothing leaves the node\n"
       "  mixed   groups of M nodes hold each other's copies; any number of nodes (Gemini, Algorithm 1)\n"
       "  group   the same where M divides the number of nodes, else refused\n"
       "  ring    each node's copies lie on the next M - 1: as dear, and survives less\n"
       "  xor     groups of K + 1 nodes, one of each may be lost; memory for 1/K of a snapshot\n"
       "  rs      groups of K + M nodes, any M of each may be lost (Reed-Solomon); memory for M/K of a snapshot\n"
       "\n"
       "  ckptctl plan --scheme mixed --nodes 64 --copies 2 --lost 3 --bytes 300GiB\n"
       "  ckptctl plan --scheme rs --nodes 64 --data 6 --parity 2 --lost 3 --bytes 300GiB --per-rack 4\n"
       "  ckptctl plan --scheme xor --nodes 64 --data 7 --lost 2 --mtbf 26280h --window 30m -o json",
       0,
       0,
       {{"--scheme", "S", "none, group, ring, mixed, xor, rs"},
        {"--nodes", "N", "nodes of the job, to 10000"},
        {"--lost", "L", "nodes lost at once, each L of the N as likely"},
        {"--copies", "M", "of group, ring, mixed: 2 to 16, the node's own included"},
        {"--data", "K", "of xor, rs: blocks of data in a stripe; K + M to 128"},
        {"--parity", "M", "of rs: blocks of parity; xor has 1"},
        {"--bytes", "B", "what one node saves at a time, all its ranks: 300GiB"},
        {"--slots", "S", "snapshots held at once, as region.slots (default 2)"},
        {"--per-rack", "R", "nodes that share a rack: whether one rack may fail"},
        {"--mtbf", "TIME", "mean time between failures of one node, 26280h; with --window"},
        {"--window", "TIME", "from a loss until the node is replaced and protected again"},
        {"--loss-probability", "P", "instead of these two: that a node is lost in such a window"},
        kOutput},
       &RunPlan},
      {"certs",
       "init | node NAME | rotate | show",
       "certificates of nodes, from a small authority of your own",
       "For clusters without an authority; no agent is asked. Files lie in DIR (ca.key, ca.pem) and OUT (NAME.key,\n"
       "NAME.pem); DIR/ca.key never leaves the machine it was made on.\n"
       "  init             make DIR and an authority in it\n"
       "  node NAME...     a key and a certificate for each node; tells where they go and what ckptd.toml says\n"
       "  rotate [NAME...] renew those in OUT, or these, with new keys; agents take them without a restart\n"
       "  show [FILE...]   whose each is and until when; exit code 1 when one is over, or is within 7 days\n"
       "\n"
       "  ckptctl certs init --cluster ml\n"
       "  ckptctl certs node n[001-064]\n"
       "  ckptctl certs rotate --within 30d\n"
       "  ckptctl certs show /etc/ckptd/tls/node.pem",
       1,
       10'001,  // init, node, ... and as many names as a cluster has nodes
       {{"--dir", "DIR", "of the authority (default: ./ckptd-certs)"},
        {"--out", "OUT", "of the nodes' files (default: DIR/nodes)"},
        {"--cluster", "NAME", "as peers.cluster has it (init: default; then the authority's)"},
        {"--days", "N", "how long it is good (default: authority 3650, nodes 90)"},
        {"--within", "TIME", "of rotate: only those that end by then, as in 30d"},
        kOutput},
       &RunCerts},
      {"version", "", "of this tool and of the agent", "", 0, 0, {kOutput, kAgent}, &RunVersion},
  };
}

std::vector<Command> MakeCommands() {
  std::vector<Command> all = LookingCommands();
  for (Command& command : StepCommands()) all.push_back(std::move(command));
  for (Command& command : OtherCommands()) all.push_back(std::move(command));
  return all;
}

const Command* FindCommand(const std::string& name) {
  const auto& commands = Commands();
  auto found = std::find_if(commands.begin(), commands.end(), [&](const Command& each) { return each.name == name; });
  return found == commands.end() ? nullptr : &*found;
}

absl::Status UnknownCommand(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : Commands()) names.push_back(command.name);
  auto near = Nearest(name, names);
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("unknown command ", name,
                            near ? absl::StrCat("; did you mean ", *near, "?") : "; ckptctl --help lists them"));
}

bool AsksForHelp(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const auto& word) { return word == "--help" || word == "-h"; });
}

absl::StatusOr<int> Run(const Command& command, const std::vector<std::string>& words) {
  CKPTD_ASSIGN_OR_RETURN(Args args, Args::Parse(command.flags, words));
  const size_t count = args.words().size();
  if (count >= command.min_words && count <= command.max_words) return command.run(args);
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat(count < command.min_words ? "an argument is missing" : "too many arguments", ": ckptctl ",
                            command.name, " ", command.takes));
}

}  // namespace

const std::vector<Command>& Commands() {
  static const auto& commands = *new std::vector<Command>(MakeCommands());
  return commands;
}

std::string HelpText() {
  std::string out = "ckptctl: see and steer the checkpoints of this node\n\n";
  for (const Command& command : Commands()) {
    absl::StrAppendFormat(&out, "  %-8s %-32s %s\n", command.name, command.takes, command.summary);
  }
  absl::StrAppend(&out,
                  "\nckptctl COMMAND --help tells more. Exit codes: 0 yes, 1 no (not durable, failed verification,\n"
                  "unhealthy), 2 usage, 3 agent not reachable, 4 not found, 5 corrupt, 6 refused.\n");
  return out;
}

std::string HelpText(const Command& command) {
  std::string out = absl::StrCat("ckptctl ", command.name, command.takes.empty() ? "" : " ", command.takes,
                                 " [flags]\n  ", command.summary, "\n");
  if (!command.help.empty()) absl::StrAppend(&out, "\n", command.help, "\n");
  absl::StrAppend(&out, "\n");
  for (const Flag& flag : command.flags) {
    absl::StrAppendFormat(&out, "  %-20s %s\n", absl::StrCat(flag.name, flag.value.empty() ? "" : " ", flag.value),
                          flag.help);
  }
  return out;
}

int RunCommandLine(const std::vector<std::string>& words) {
  if (words.empty()) {
    Print(HelpText());
    return InfoOf(ErrorCode::INVALID_ARGUMENT).exit_code;
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") return Print(HelpText()), kYes;
  const std::string name = words[0] == "--version" ? "version" : words[0];
  const Command* command = FindCommand(name);
  if (command == nullptr) return Fail(UnknownCommand(name));
  std::vector<std::string> rest(words.begin() + 1, words.end());
  if (AsksForHelp(rest)) return Print(HelpText(*command)), kYes;
  auto code = Run(*command, rest);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace ckptd
