mod wait;
