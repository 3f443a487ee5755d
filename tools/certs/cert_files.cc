#include "tools/certs/cert_files.h"

#include <cerrno>
#include <cstdio>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/member.h"

namespace ckptd::certs {
namespace {

constexpr size_t kMaxPem = 1 << 20;
constexpr size_t kMaxEntries = 4 * membership::kMaxMembers;
constexpr char kCertificateEnd[] = ".pem";
constexpr uint32_t kKeyMode = 0600;
constexpr uint32_t kCertificateMode = 0644;
constexpr uint32_t kOthers = 077;

enum class Existing { kRefuse, kReplace };

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return status.ok() ? status : Error(CodeOf(status), absl::StrCat(path, ": ", status.message()));
}

absl::Status WriteWhole(Files& files, const std::string& path, const std::string& text, uint32_t mode) {
  OpenOptions options;
  options.write = options.create = true;
  options.mode = mode;
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path, options));
  CKPTD_RETURN_IF_ERROR(file->PWrite(0, std::as_bytes(std::span(text))));
  CKPTD_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status Rename(Files& files, const std::string& from, const std::string& to, Existing existing) {
  if (existing == Existing::kReplace)
    return std::rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : FileError(errno, "rename to", to);
  absl::Status renamed = files.RenameNoReplace(from, to);
  if (absl::IsUnimplemented(renamed)) {
    renamed = files.Link(from, to);
    if (renamed.ok()) return files.Unlink(from);
  }
  if (!absl::IsAlreadyExists(renamed)) return renamed;
  return Error(ErrorCode::REFUSED, absl::StrCat(to, ": appeared meanwhile"));
}

absl::Status Put(Files& files, const std::string& path, const std::string& text, uint32_t mode, Existing existing) {
  const std::string temporary = absl::StrFormat("%s/.ckptctl-%016x.tmp", ParentOf(path), RandomId());
  absl::Status put = WriteWhole(files, temporary, text, mode);
  if (put.ok()) put = Rename(files, temporary, path, existing);
  if (put.ok()) return files.SyncDir(ParentOf(path));
  (void)files.Unlink(temporary);
  return put;
}

absl::Status PutPair(Files& files, const std::string& dir, const std::string& name, const KeyPair& pair,
                     Existing existing) {
  CKPTD_RETURN_IF_ERROR(Put(files, KeyPath(dir, name), pair.key, kKeyMode, existing));
  return Put(files, CertificatePath(dir, name), pair.certificate, kCertificateMode, existing);
}

absl::Status MakeDir(Files& files, const std::string& dir) {
  const absl::Status made = files.Mkdir(dir, 0700);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

absl::Status CheckOwnersOnly(Files& files, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const FileInfo info, files.Stat(path));
  if ((info.mode & kOthers) == 0) return absl::OkStatus();
  return Error(ErrorCode::REFUSED,
               absl::StrFormat("%s: others than its owner may use it (mode %04o): chmod 600 %s; if they may have read "
                               "it, make a new authority",
                               path, info.mode, path));
}

// `next`: what to do where both files are there.
absl::Status CheckAbsent(Files& files, const std::string& dir, const std::string& name, const std::string& next) {
  CKPTD_ASSIGN_OR_RETURN(const bool has_key, Exists(files, KeyPath(dir, name)));
  CKPTD_ASSIGN_OR_RETURN(const bool has_certificate, Exists(files, CertificatePath(dir, name)));
  if (!has_key && !has_certificate) return absl::OkStatus();
  const std::string found = has_certificate ? CertificatePath(dir, name) : KeyPath(dir, name);
  if (has_key && has_certificate) return Error(ErrorCode::REFUSED, absl::StrCat(found, ": is there already: ", next));
  return Error(ErrorCode::REFUSED,
               absl::StrCat(found,
                            ": is there, and the other of the two files is not, as a run that was cut off leaves "
                            "it: move it away"));
}

}  // namespace

std::string KeyPath(const std::string& dir, const std::string& name) { return absl::StrCat(dir, "/", name, ".key"); }

std::string CertificatePath(const std::string& dir, const std::string& name) {
  return absl::StrCat(dir, "/", name, kCertificateEnd);
}

absl::Status MakeAuthority(Files& files, const std::string& dir, const KeyPair& pair) {
  CKPTD_RETURN_IF_ERROR(MakeDir(files, dir));
  CKPTD_RETURN_IF_ERROR(CheckAbsent(files, dir, kCa,
                                    absl::StrCat("ckptctl certs node NAME --dir ", dir,
                                                 " lets the authority that is there sign; name another --dir for a "
                                                 "second one")));
  return PutPair(files, dir, kCa, pair, Existing::kRefuse);
}

absl::StatusOr<Authority> LoadAuthority(Files& files, const std::string& dir) {
  const std::string key = KeyPath(dir, kCa);
  for (const std::string& path : {key, CertificatePath(dir, kCa)}) {
    CKPTD_ASSIGN_OR_RETURN(const bool exists, Exists(files, path));
    if (!exists)
      return Error(ErrorCode::NOT_FOUND, absl::StrCat(path, ": there is no authority: ckptctl certs init --dir ", dir,
                                                      " makes one, --dir names that of another place"));
  }
  CKPTD_RETURN_IF_ERROR(CheckOwnersOnly(files, key));
  KeyPair pair;
  CKPTD_ASSIGN_OR_RETURN(pair.key, ReadSmall(files, key, kMaxPem));
  CKPTD_ASSIGN_OR_RETURN(pair.certificate, ReadSmall(files, CertificatePath(dir, kCa), kMaxPem));
  auto authority = Authority::Parse(pair);
  if (!authority.ok()) return WithPath(dir, authority.status());
  return authority;
}

absl::Status CheckNone(Files& files, const std::string& dir, const std::string& node) {
  CKPTD_RETURN_IF_ERROR(CheckNode(node));
  return CheckAbsent(files, dir, node, absl::StrCat("ckptctl certs rotate ", node, " renews it"));
}

absl::Status WriteNode(Files& files, const std::string& dir, const std::string& node, const KeyPair& pair) {
  CKPTD_RETURN_IF_ERROR(CheckNode(node));
  CKPTD_RETURN_IF_ERROR(MakeDir(files, dir));
  return PutPair(files, dir, node, pair, Existing::kReplace);
}

namespace {

using ReadCall = absl::StatusOr<std::string> (*)(Files& files, const std::string& path, size_t max_bytes);

absl::StatusOr<NodeFiles> ReadBoth(Files& files, const std::string& path, ReadCall read) {
  NodeFiles out;
  KeyPair pair;
  CKPTD_ASSIGN_OR_RETURN(pair.certificate, read(files, path, kMaxPem));
  auto about = Read(pair.certificate);
  if (!about.ok()) return WithPath(path, about.status());
  out.about = *std::move(about);
  auto key = read(files, absl::StrCat(absl::StripSuffix(path, kCertificateEnd), ".key"), kMaxPem);
  if (!key.ok() || !absl::EndsWith(path, kCertificateEnd)) return out;
  out.has_key = true;
  pair.key = *std::move(key);
  out.fits = Fits(pair).value_or(false);
  return out;
}

}  // namespace

absl::StatusOr<NodeFiles> ReadCertificate(Files& files, const std::string& path) {
  return ReadBoth(files, path, ReadOperatorFile);
}

absl::StatusOr<NodeFiles> ReadNode(Files& files, const std::string& dir, const std::string& node) {
  CKPTD_RETURN_IF_ERROR(CheckNode(node));
  CKPTD_ASSIGN_OR_RETURN(NodeFiles found, ReadBoth(files, CertificatePath(dir, node), ReadSmall));
  if (found.about.node == node) return found;
  const std::string whose = found.about.authority      ? "an authority"
                            : found.about.node.empty() ? "none that ckptctl made"
                                                       : absl::StrCat("node ", found.about.node);
  return Error(ErrorCode::REFUSED, absl::StrCat(CertificatePath(dir, node), ": is the certificate of ", whose,
                                                ", not of node ", node, ": move it away"));
}

absl::StatusOr<std::vector<std::string>> NodesIn(Files& files, const std::string& dir) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, files.ReadDir(dir, kMaxEntries));
  std::vector<std::string> nodes;
  for (const DirEntry& entry : entries) {
    absl::string_view name = entry.name;
    if (!absl::ConsumeSuffix(&name, kCertificateEnd) || name == kCa || !CheckNode(name).ok()) continue;
    nodes.emplace_back(name);
  }
  return nodes;
}

}  // namespace ckptd::certs
