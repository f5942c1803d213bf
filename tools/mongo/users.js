// Run once, by the image of MongoDB when its volume is empty: the two users of the runs.
// Both may write: Omniboard keeps its columns and notes beside the runs.
const runs = db.getSiblingDB("sacred");
for (const [user, pwd] of [
  ["trainer", process.env.TRAINER_PASSWORD],
  ["viewer", process.env.VIEWER_PASSWORD],
]) {
  runs.createUser({ user, pwd, roles: [{ role: "readWrite", db: "sacred" }] });
}
