/** What each part is made of. Shared files concern every part. */
export const shared = ['.shuntyard/**'];
export const service = ['service/**', ...shared];
export const web = ['web/**', ...shared];
