#include "daemon/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/config/keys.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view text) {
  auto config = LoadConfig(text, "ckptd.toml", Config());
  EXPECT_EQ(CodeOf(config.status()), ErrorCode::INVALID_ARGUMENT) << text;
  return std::string(config.status().message());
}

TEST(Load, EmptyFileIsTheDefaults) {
  auto config = LoadConfig("", "f", Config());
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(*config, Config());
}

TEST(Load, EveryType) {
  auto config = LoadConfig(R"(
    [agent]
    socket = "/a/b.sock"
    admin_socket = "off"
    log_level = "debug"
    drain_timeout = "1m"
    [region]
    size = "1.5 GiB"
    job_quota = "auto"
    slots = 3
    chunk_bytes = "8 MiB"
    [storage]
    io = "threads"
    direct = "off"
    [durability]
    [peers]
    membership = "etcd"
    etcd_endpoints = "https://e1:2379,https://e2:2379"
    etcd_ttl = "5s"
    port = 7000
    labels = "rack=r3 zone=b"
    [security]
    socket_mode = "0666"
    [metrics]
    listen = "[::1]:80"
  )",
                           "f", Config());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->agent.socket, "/a/b.sock");
  EXPECT_EQ(config->agent.log_level, kDebug);
  EXPECT_EQ(config->agent.drain_timeout, std::chrono::minutes(1));
  EXPECT_EQ(config->region.size.bytes, 1536 * kMiB);
  EXPECT_EQ(config->region.job_quota.bytes, 0U);
  EXPECT_EQ(config->region.slots, 3U);
  EXPECT_EQ(config->region.chunk_bytes.bytes, 8 * kMiB);
  EXPECT_EQ(config->storage.io, IoChoice::kThreads);
  EXPECT_EQ(config->peers.membership, MembershipChoice::kEtcd);
  EXPECT_EQ(config->peers.etcd_endpoints, "https://e1:2379,https://e2:2379");
  EXPECT_EQ(config->peers.etcd_ttl, std::chrono::seconds(5));
  EXPECT_EQ(config->peers.port, 7000U);
  EXPECT_EQ(config->peers.labels, "rack=r3 zone=b");
  EXPECT_EQ(config->security.socket_mode, 0666U);
  EXPECT_EQ(config->metrics.listen, "[::1]:80");
}

TEST(Load, WhatIsPrintedReadsBackTheSame) {
  Config config;
  config.agent.drain_timeout = std::chrono::milliseconds(1500);
  config.agent.node_name = "node-7";
  config.agent.log_level = kWarning;
  config.region.size.bytes = 5 * kMiB + 1;
  config.region.dir = "/a \"b\"\\\x01\xc3\xa4";
  config.security.socket_mode = 07;
  config.storage.direct = DirectChoice::kOff;
  auto read = LoadConfig(PrintConfig(config), "f", Config());
  ASSERT_TRUE(read.ok()) << read.status() << PrintConfig(config);
  EXPECT_EQ(*read, config);
}

TEST(Load, UnknownNamesSuggestTheNearest) {
  EXPECT_EQ(ErrorOf("[region]\n\nslot = 2"), "ckptd.toml:3: unknown key region.slot; did you mean region.slots?");
  EXPECT_THAT(ErrorOf("slots = 2"), HasSubstr("unknown key slots; did you mean region.slots?"));
  EXPECT_THAT(ErrorOf("[storage]\nslots = 2"), HasSubstr("did you mean region.slots?"));
  EXPECT_THAT(ErrorOf("[peers]\nflush = 2"), HasSubstr("unknown key peers.flush"));
  EXPECT_THAT(ErrorOf("[regions]\nslots = 2"), HasSubstr("unknown section regions; did you mean [region]?"));
  EXPECT_THAT(ErrorOf("[peers]\nlist = []"), HasSubstr("unknown key peers.list"));
}

TEST(Load, AMembershipNamesWhatItNeeds) {
  EXPECT_THAT(ErrorOf("[peers]\nmembership = \"dns\""), HasSubstr("give peers.dns_name"));
  EXPECT_THAT(ErrorOf("[peers]\nmembership = \"etcd\""), HasSubstr("give peers.etcd_endpoints"));
  EXPECT_THAT(ErrorOf("[peers]\netcd_key = \"/k\""), HasSubstr("peers.etcd_cert and peers.etcd_key"));
  EXPECT_THAT(ErrorOf("[peers]\nport = 65536"), HasSubstr("an integer from 1 to 65535"));
  EXPECT_THAT(ErrorOf("[peers]\nmembers = \"a\\nb\""), HasSubstr("peers.members: expected a string"));
}

TEST(Load, CertificatesOfANodeComeTogether) {
  constexpr char kAll[] = "[peers]\ntls_ca = \"/ca\"\ntls_cert = \"/c\"\ntls_key = \"/k\"\n";
  auto mutual = LoadConfig(kAll, "f", Config());
  ASSERT_TRUE(mutual.ok()) << mutual.status();
  EXPECT_EQ(mutual->peers.tls, PeersTlsChoice::kMutual);
  EXPECT_EQ(mutual->peers.tls_key, "/k");
  EXPECT_EQ(mutual->peers.cluster, "default");
  EXPECT_THAT(ErrorOf("[peers]\ntls_ca = \"/ca\""), HasSubstr("of use together only"));
  EXPECT_THAT(ErrorOf("[peers]\ntls_cert = \"/c\"\ntls_key = \"/k\""), HasSubstr("of use together only"));
  EXPECT_THAT(ErrorOf("[peers]\ntls_ca = \"ca.pem\""), HasSubstr("absolute path"));
  EXPECT_THAT(ErrorOf("[peers]\ncluster = \"\""), HasSubstr("peers.cluster"));
  EXPECT_THAT(ErrorOf("[peers]\ncluster = \"a/b\""), HasSubstr("peers.cluster"));
  EXPECT_THAT(ErrorOf(std::string(kAll) + "tls = \"plaintext-on-loopback\"\naddress = \"127.0.0.1\""),
              HasSubstr("set peers.tls to mutual"));
}

TEST(Load, CopiesOverTlsNeedCertificates) {
  const std::string tls = "[peers]\nbulk = \"tls\"\n";
  const std::string certificates = "tls_ca = \"/ca\"\ntls_cert = \"/c\"\ntls_key = \"/k\"\n";
  EXPECT_THAT(ErrorOf(tls), HasSubstr("needs certificates: set peers.tls to mutual and give peers.tls_ca"));
  EXPECT_THAT(ErrorOf(tls + "tls = \"plaintext-on-loopback\"\naddress = \"127.0.0.2\""),
              HasSubstr("needs certificates"));
  EXPECT_THAT(ErrorOf(tls + certificates + "bulk_port = 9465"), HasSubstr("the same"));
  EXPECT_THAT(ErrorOf(tls + certificates + "dscp = 64"), HasSubstr("0 to 63"));
  EXPECT_THAT(ErrorOf("[peers]\nbulk = \"grpc\"\ndscp = 8"), HasSubstr("set peers.bulk to one of them"));
  const auto config = LoadConfig(tls + certificates + "bulk_port = 0\ndscp = 8", "f", Config());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->peers.bulk, PeersBulkChoice::kTls);
  EXPECT_EQ(config->peers.bulk_port, 0U);
  EXPECT_EQ(config->peers.dscp, 8U);
  EXPECT_EQ(Config().peers.bulk_port, 9466U);
}

TEST(Load, PlainTcpIsAskedForInSoManyWords) {
  const std::string tcp = "[peers]\nbulk = \"tcp\"\n";
  EXPECT_THAT(ErrorOf(tcp), HasSubstr("set peers.bulk_network to trusted"));
  EXPECT_THAT(ErrorOf(tcp + "bulk_network = \"untrusted\""), HasSubstr("unencrypted"));
  EXPECT_THAT(ErrorOf(tcp + "bulk_network = \"trusted\"\nbulk_port = 9465"), HasSubstr("the same"));
  const auto trusted = LoadConfig(tcp + "bulk_network = \"trusted\"\ndscp = 8", "f", Config());
  ASSERT_TRUE(trusted.ok()) << trusted.status();
  EXPECT_EQ(trusted->peers.bulk, PeersBulkChoice::kTcp);
  const auto alone = LoadConfig(tcp + "tls = \"plaintext-on-loopback\"\naddress = \"127.0.0.2\"", "f", Config());
  EXPECT_TRUE(alone.ok()) << "gRPC is not encrypted there either: " << alone.status();
}

TEST(Load, UcxIsAskedForInSoManyWords) {
  EXPECT_THAT(ErrorOf("[peers]\nbulk = \"ucx\""), HasSubstr("set peers.bulk_network to trusted"));
  EXPECT_THAT(ErrorOf("[peers]\nbulk = \"ucx\"\nbulk_network = \"untrusted\""), HasSubstr("unencrypted"));
  EXPECT_THAT(ErrorOf("[peers]\nbulk = \"rdma\""), HasSubstr("expected one of auto | grpc | tls | tcp | ucx"));
  const auto trusted = LoadConfig("[peers]\nbulk = \"ucx\"\nbulk_network = \"trusted\"", "f", Config());
  ASSERT_TRUE(trusted.ok()) << trusted.status();
  EXPECT_EQ(trusted->peers.bulk, PeersBulkChoice::kUcx);
  EXPECT_THAT(ErrorOf("[peers]\nucx_library = \"libucp.so.0\""), HasSubstr("absolute path, or empty"));
  EXPECT_EQ(Config().peers.bulk, PeersBulkChoice::kAuto);
}

TEST(Load, PlaintextIsForOneMachineAndSaidInFull) {
  const auto with = [](const std::string& tls, const std::string& address) {
    return LoadConfig("[peers]\ntls = \"" + tls + "\"\naddress = \"" + address + "\"", "f", Config()).status();
  };
  for (const char* address : {"127.0.0.1", "127.3.2.1", "::1"})
    EXPECT_TRUE(with("plaintext-on-loopback", address).ok()) << address;
  for (const char* address : {"", "10.0.0.1", "localhost", "n1", "0.0.0.0", "::", "127.1", "::ffff:127.0.0.1"}) {
    EXPECT_THAT(std::string(with("plaintext-on-loopback", address).message()), HasSubstr("or peers.tls to mutual"))
        << address;
  }
  for (const char* tls : {"plaintext", "off", "none", "", "Plaintext-on-loopback", "false"})
    EXPECT_THAT(std::string(with(tls, "127.0.0.1").message()), HasSubstr("expected one of mutual |")) << tls;
}

TEST(Load, AllErrorsAtOnce) {
  std::string errors = ErrorOf("[region]\nslots = 9\ndir = 3\n[agent]\nlog_level = \"loud\"");
  EXPECT_THAT(errors, HasSubstr("ckptd.toml:2: region.slots: expected an integer from 2 to 8"));
  EXPECT_THAT(errors, HasSubstr("ckptd.toml:3: region.dir: expected a string: absolute path"));
  EXPECT_THAT(errors, HasSubstr("ckptd.toml:5: agent.log_level: expected one of error | warning | info | debug"));
}

TEST(Load, TypesAndRangesAreStrict) {
  for (const char* line : {"region.slots = \"2\"",
                           "region.slots = 2.0",
                           "region.slots = 1",
                           "region.slots = -1",
                           "region.slots = true",
                           "region.slots = [2]",
                           "region.slots.x = 2",
                           "region = 2",
                           "region.size = 1048576",
                           "region.size = \"1\"",
                           "region.size = \"1 XiB\"",
                           "region.size = \"-1 GiB\"",
                           "region.chunk_bytes = \"3 MiB\"",
                           "region.chunk_bytes = \"32 KiB\"",
                           "region.chunk_bytes = \"128 MiB\"",
                           "storage.direct = \"on\"",
                           "agent.drain_timeout = 30",
                           "agent.drain_timeout = \"30\"",
                           "agent.drain_timeout = \"25h\"",
                           "agent.socket = \"relative\"",
                           "agent.socket = \"off\"",
                           "agent.socket = \"/\"",
                           "agent.node_name = \"a b\"",
                           "agent.socket = \"/a\\u0000b\"",
                           "security.socket_mode = \"0999\"",
                           "security.socket_mode = 432",
                           "security.socket_mode = \"10666\"",
                           "security.socket_mode = \"4755\"",
                           "metrics.listen = \"0.0.0.0:9464\"",
                           "metrics.listen = \"127.0.0.1\"",
                           "metrics.listen = \"127.0.0.1:65536\"",
                           "metrics.listen = \"127.0.0.1:+1\"",
                           "storage.io = \"URING\"",
                           "retention.keep_last = 0",
                           "agent.log_level = 1"})
    EXPECT_FALSE(LoadConfig(line, "f", Config()).ok()) << line;
}

TEST(Load, SocketPathsFitTheKernel) {
  auto with_length = [](size_t length) {
    return LoadConfig(absl::StrCat("agent.socket = \"/", std::string(length - 1, 'x'), "\""), "f", Config());
  };
  EXPECT_TRUE(with_length(107).ok());
  EXPECT_FALSE(with_length(108).ok());
}

TEST(Load, KeysTogether) {
  EXPECT_THAT(ErrorOf("region.size = \"1 GiB\"\nregion.job_quota = \"2 GiB\""), HasSubstr("job_quota is larger"));
  EXPECT_THAT(ErrorOf("region.dir = \"/a\"\nstorage.root = \"/a\""), HasSubstr("the same path"));
  EXPECT_THAT(ErrorOf("durability.back_pressure = \"replace-queued\""), HasSubstr("it is 2: set region.slots = 3"));
  EXPECT_TRUE(LoadConfig("durability.back_pressure = \"replace-queued\"\nregion.slots = 3", "f", Config()).ok());
  EXPECT_THAT(ErrorOf("agent.socket = \"/a\"\nagent.admin_socket = \"/a\""), HasSubstr("the same path"));
}

TEST(Load, NotToml) {
  EXPECT_THAT(ErrorOf("[agent\n"), HasSubstr("ckptd.toml:1: "));
  EXPECT_THAT(ErrorOf("[agent]\nsocket = "), HasSubstr("ckptd.toml:2: "));
  EXPECT_THAT(ErrorOf("[agent]\nsocket = \"/a\"\nsocket = \"/b\""), HasSubstr("ckptd.toml:3: "));
  EXPECT_THAT(ErrorOf(std::string((32 << 10) + 1, ' ')), HasSubstr("at most 32768"));
  EXPECT_FALSE(LoadConfig("a = " + std::string(100'000, '['), "f", Config()).ok());
}

// What a file of the largest size can nest fits the stack, and a word of that size is compared with every key in time.
TEST(Load, AsDeepAndAsLongAsAFileMayBe) {
  std::string deep;
  while (deep.size() < (32 << 10) - 4) deep += "a.";
  EXPECT_THAT(ErrorOf(deep + "a=1"), HasSubstr("ckptd.toml:1: unknown"));
  EXPECT_THAT(ErrorOf("region." + std::string(32000, 'a') + " = 1"), HasSubstr("ckptd.toml:1: unknown key"));
  while (deep.size() < 200'000) deep += "a.";
  EXPECT_THAT(ErrorOf(deep + "a=1"), HasSubstr("at most"));
}

TEST(Keys, NamesAreUniqueAndTheirDefaultsValid) {
  std::set<std::string> names;
  for (const Key& key : Keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    Config config;
    EXPECT_TRUE(key.set(key.get(Config()), &config).ok()) << key.name;
    EXPECT_EQ(config, Config()) << key.name;
    EXPECT_FALSE(key.help.empty() || key.type.empty()) << key.name;
  }
}

}  // namespace
}  // namespace ckptd
